"""Logits of the last rung, of a prompt and of the steps behind it, against the same model computed in float64."""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson, load_model
from rosecourse.decode import five_kernels
from rosecourse.kernels import FusedLinears
from rosecourse.models.gpt2 import GPT2, GPT2Shape
from rosecourse.models.llama import Llama, LlamaShape
from tests.kernels.harness import INTERPRETED
from tests.support.fewer_kernels import Forward
from tests.support.oracles import attention

BOUND = 2**-18  # of the largest logit: 64 roundings of float32, where half precision has an error of 2**-11
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # inside the interpreter
PARAMS = SamplingParams(max_new_tokens=4, stop_on_eos=False)


class FusedOps(five_kernels.LayerOps):
    """On a CPU, too."""

    def kernels_on(self, device, dtype):
        return FusedLinears(device, dtype)


def small(kind, shape):
    """A model with random weights."""
    draw = torch.Generator().manual_seed(0)
    sizes = shape.parameters().items()
    return kind(shape, {name: 0.3 * torch.randn(size, generator=draw) for name, size in sizes}, None, "small")


MODELS = {name: (lambda name=name: load_model(name, device="cpu"), {}) for name in ("tiny-gpt2", "tiny-llama")}
if INTERPRETED:
    fused = {"forward": Forward, "ops": FusedOps}
    MODELS |= {
        "GPT-2 in fused kernels": (lambda: small(GPT2, GPT2Shape(97, 32, 32, 2, 2)), fused),
        "Llama in fused kernels": (lambda: small(Llama, LlamaShape(97, 32, 32, 48, 2, 4, 2, 16, qk_norm=True)), fused),
    }


def in_float64(model, token_ids):
    """Logits [T, vocab_size] after each token, of the whole sequence at once."""

    def attend(layer_idx, q, k, v):
        return torch.stack([attention(q[t], k[: t + 1], v[: t + 1]) for t in range(len(q))])

    weights = {name: weight.double() for name, weight in model.weights.items()}
    wide = type(model)(model.shape, weights, None, "wide")
    return wide.logits(wide.hidden(torch.tensor(token_ids), torch.arange(len(token_ids)), attend))


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_float64_but_for_rounding(name):
    make, parts = MODELS[name]
    model = make()
    engine = InferenceEngine(model, EngineConfig(block_size=4, max_seq_len=32), lesson("071").after.with_(**parts))
    sessions = [engine.new_session(prompt, PARAMS) for prompt in ([5, 17, 30, 42, 24, 3], [8, 9, 10])]
    logits = [engine.prefill(sessions)]
    for _ in range(PARAMS.max_new_tokens - 1):
        engine.take_tokens(sessions, logits[-1])
        logits.append(engine.decode_step_sessions(sessions))
    for found, session in zip(torch.stack(logits, 1), sessions, strict=True):
        right = in_float64(model, session.token_ids)[-len(found) :]
        torch.testing.assert_close(found.double(), right, atol=BOUND * float(right.abs().max()), rtol=0)
