"""What the engine asks of a model: a model that lacks something is refused by the name of what it lacks."""

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rosecourse
from rosecourse import ConfigError, InferenceEngine, ModelError, load_model
from rosecourse.measure.rivals import as_transformers
from rosecourse.models import load
from rosecourse.models.shape import require_model
from tests.support.grouped_model import GroupedModel, GroupedShape
from tests.support.tag_model import TagModel

SIZES = {
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 3,
    "head_dim": 4,
    "width": 24,
    "context": 32,
    "vocab_size": 50,
}
MODEL = {
    "dtype": torch.float32,
    "device": torch.device("cpu"),
    "tokenizer": None,
    "name": "a stand-in",
    "hidden": lambda token_ids, positions, attend: None,
    "logits": lambda hidden: None,
}


def stand_in(without=None, **sizes):
    """A model of another class, which may lack one of its names."""
    shape = SIZES | {"parameters": dict} | sizes
    shape = SimpleNamespace(**{name: value for name, value in shape.items() if name != without})
    return SimpleNamespace(**{name: value for name, value in (MODEL | {"shape": shape}).items() if name != without})


def refused(model, message):
    for take in (require_model, InferenceEngine):
        with pytest.raises(ConfigError, match=message) as caught:
            take(model)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200


def test_models_of_several_classes_are_taken(model, small_model):
    for known in (model, small_model, TagModel(), GroupedModel(GroupedShape(4, 2), None), stand_in()):
        require_model(known)
        assert InferenceEngine(known).kv.k_layers[0].shape[1] == known.shape.num_kv_heads
    assert model.shape.num_kv_heads == model.shape.num_heads == 4


MODEL_LACKS = "^the model is .*: give an object of type Model, this one has no {!r}$"
SHAPE_LACKS = "^the shape of the model is .*: give an object of type ModelShape, .* no {!r}$"
SHARE = "^{} query heads cannot share 3 KV heads evenly: give a multiple of 3$"
REFUSED = [
    *((stand_in(without=name), MODEL_LACKS.format(name)) for name in [*MODEL, "shape"]),
    *((stand_in(without=name), SHAPE_LACKS.format(name)) for name in [*SIZES, "parameters"]),
    *((value, f"^the model is {re.escape(repr(value))}: give an object of type Model, ") for value in ("gpt2", None)),
    *(
        (stand_in(**{name: value}), f"^{name} of the model is {re.escape(repr(value))}: give 1 or more$")
        for name, value in [*product(SIZES, [0, True]), *product(["width"], [-1, 1.5, None, "3"])]
    ),
    *((stand_in(num_heads=number), SHARE.format(number)) for number in (1, 4)),
]


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_a_model_lacks_is_named(model, message):
    refused(model, message)


def test_a_gpu_that_is_not_the_first_is_refused():
    """Triton launches on the current device, which is the first one in every thread that nobody has told another."""
    model = stand_in()
    model.device = torch.device("cuda:1")
    refused(
        model, "^the model is on 'cuda:1', .*: start Python with CUDA_VISIBLE_DEVICES=1, and load .* device='cuda'$"
    )
    for device in ("cuda", "cuda:0"):
        model.device = torch.device(device)
        require_model(model)


def test_few_modules_know_a_family():
    """Those that load it, the lab's small models, and the comparison with `transformers`."""
    package = Path(rosecourse.__file__).parent
    known = {
        path
        for path in package.rglob("*.py")
        if re.search(r"^from (\S*\.)?(gpt2|llama) import", path.read_text(), re.MULTILINE)
    }
    allowed = ["models/llama_config.py", "models/load.py", "measure/rivals.py", "lab/checking/whole_engine.py"]
    allowed += ["lab/checking/models/operations.py"]
    assert {str(path.relative_to(package)) for path in known} == set(allowed)


def test_a_second_family_is_an_entry_in_a_table(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    calls = []

    def loader(folder, config, dtype, device):
        calls.append((folder.source, config["model_type"], dtype, device))
        return TagModel()

    monkeypatch.setitem(load.LOADERS, "mamba", loader)
    assert isinstance(load_model(tmp_path, dtype="bfloat16", device="cpu"), TagModel)
    assert calls == [(str(tmp_path), "mamba", torch.bfloat16, torch.device("cpu"))]
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match=r"is a 'bert' model: the engine runs only 'gpt2', .*'mamba'$"):
        load_model(tmp_path, device="cpu")


def test_only_a_gpt2_is_compared_with_transformers():
    with pytest.raises(
        ConfigError, match=r"^the model 'tags' is not a GPT-2: give one to compare with `transformers`$"
    ):
        as_transformers(TagModel())
