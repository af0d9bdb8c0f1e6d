"""The operations of a layer in five kernels: an engine over them gives the logits and tokens of the plain one.

On a CPU the kernels go through the interpreter.
"""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode import five_kernels
from rosecourse.decode.five_kernels import LayerOps
from rosecourse.decode.ops import Residual
from rosecourse.decode.runner import CPUGraphRunner
from rosecourse.kernels.fused import FusedLinears
from rosecourse.models.load import from_transformers
from rosecourse.models.ops import LayerOps as Plain
from tests.support.oracles import hf_greedy, hf_random_gpt2, prompts_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
BEFORE = lesson("069").after
LENGTHS = [1, 4, 17]


@pytest.fixture(scope="module")
def pair(model):
    """A small GPT-2, of `transformers` and of the engine."""
    hf = hf_random_gpt2(num_layers=2)
    return hf, from_transformers(hf, model.tokenizer, "small").to(DEVICE) if DEVICE == "cuda" else from_transformers(
        hf, model.tokenizer, "small"
    )


def next_logits(model, ops, steps=2):
    """The logits of some steps after the prompts, which are chosen greedily."""
    engine = InferenceEngine(model, EngineConfig(max_batch_size=4), BEFORE.with_(ops=ops))
    params = SamplingParams(max_new_tokens=9, stop_on_eos=False)
    sessions = [engine.new_session(prompt, params) for prompt in prompts_of(LENGTHS, model.shape.vocab_size)]
    logits, found = engine.prefill(sessions), []
    for _ in range(steps):
        engine.take_tokens(sessions, logits)
        logits = engine.decode_step_sessions(sessions)
        found.append(logits)
    return torch.stack(found)


def ops_of(model, **changed):
    """The operations, made for a model of which some things are said to be different."""
    return LayerOps(type("Changed", (), {"__getattr__": lambda self, name: changed.get(name) or getattr(model, name)})(), EngineConfig())
