"""What the engine asks of a model: one that lacks something is refused."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rosecourse
from rosecourse import ConfigError, InferenceEngine
from rosecourse.models.shape import require_model
from tests.support.grouped_model import GroupedModel, GroupedShape
from tests.support.tag_model import TagModel

COUNTS = {"num_layers": 2, "num_heads": 6, "num_kv_heads": 3, "head_dim": 4, "width": 24, "context": 32}
COUNTS |= {"vocab_size": 50}
MODEL = {
    "dtype": torch.float32,
    "device": torch.device("cpu"),
    "tokenizer": None,
    "name": "a stand-in",
    "hidden": lambda token_ids, positions, attend: None,
    "logits": lambda hidden: None,
}


def stand_in(without=None, device="cpu", **sizes):
    """A model of another class, which may lack one of its names."""
    shape = COUNTS | {"parameters": dict} | sizes
    shape = SimpleNamespace(**{name: value for name, value in shape.items() if name != without})
    model = MODEL | {"shape": shape, "device": torch.device(device)}
    return SimpleNamespace(**{name: value for name, value in model.items() if name != without})


def test_models_of_several_classes_are_taken(small_model):
    for known in (small_model, TagModel(), GroupedModel(GroupedShape(4, 2), None), stand_in()):
        require_model(known)
        assert InferenceEngine(known).kv.k_layers[0].shape[1] == known.shape.num_kv_heads
    for device in ("cuda", "cuda:0"):
        require_model(stand_in(device=device))


REFUSED = [  # a model, words
    *((stand_in(name), "give an object of type Model") for name in [*MODEL, "shape"]),
    *((stand_in(name), "give an object of type ModelShape") for name in [*COUNTS, "parameters"]),
    *((value, f"the model is {value!r}: give an object of type Model") for value in ("gpt2", None)),
    *((stand_in(num_heads=number), f"{number} query heads cannot share 3 KV heads evenly") for number in (1, 4)),
    # Triton launches on the current device, which is the first one in every thread that nobody has told another.
    (stand_in(device="cuda:1"), "start Python with CUDA_VISIBLE_DEVICES=1"),
]


@pytest.mark.parametrize(("model", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_a_model_that_lacks_something_is_refused(model, words):
    for take in (require_model, InferenceEngine):
        with pytest.raises(ConfigError, match=re.escape(words)) as caught:
            take(model)
        assert "\n" not in str(caught.value)


def test_few_modules_know_a_family():
    """Those that load it, the lab's small models, and the comparison with `transformers`."""
    package = Path(rosecourse.__file__).parent
    imports = re.compile(r"^from (\S*\.)?(gpt2|llama) import", re.MULTILINE)
    known = {str(path.relative_to(package)) for path in package.rglob("*.py") if imports.search(path.read_text())}
    lab = {"lab/checking/whole_engine.py", "lab/checking/models/operations.py", "lab/course/l073.py"}
    assert known == lab | {"models/configs.py", "models/load.py", "measure/rivals.py"}
