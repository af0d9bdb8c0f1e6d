"""The operations of a layer in five kernels: an engine over them gives the logits and tokens of the plain one.

On a CPU the kernels go through the interpreter.
"""

from types import SimpleNamespace

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode import five_kernels
from rosecourse.decode.ops import Residual
from rosecourse.decode.sampling import argmax
from rosecourse.kernels import FusedLinears, fused, triton_runs_on
from rosecourse.lab.checking.cpu_runners import FixedWidthForward
from rosecourse.models.ops import LayerOps as PlainOps
from tests.support.graph_runners import CPUGraphRunner
from tests.support.oracles import hf_greedy, hf_random_gpt2, prompts_of
from tests.support.small_models import from_transformers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
BEFORE = lesson("069").after
ON_A_CPU = {"runner": CPUGraphRunner, "forward": FixedWidthForward} if DEVICE == "cpu" else {}
PARAMS = SamplingParams(max_new_tokens=8, stop_on_eos=False)
PROMPTS = prompts_of([1, 4, 17], 211)


class LayerOps(five_kernels.LayerOps):
    """The best ones, also on a CPU, whose engines leave them alone."""

    anywhere = True

    def kernels_on(self, device, dtype):
        runs = self.anywhere and triton_runs_on(device) and dtype in five_kernels.DTYPES
        return super().kernels_on(device, dtype) or (FusedLinears(device, dtype) if runs else None)


@pytest.fixture(autouse=True)
def fresh_memory_is_nan():
    """The kernels compute with what lies in rows that are not there, and store nothing of it.

    NaN shows where it gets out; any other number could overflow, of which numpy would tell inside the interpreter. On a
    GPU, torch would refuse operations that have no order.
    """
    torch.use_deterministic_algorithms(DEVICE == "cpu")  # fills what `empty` gives, `torch.utils.deterministic`
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def pair(model):
    """A small random GPT-2, of the engine, and its tokens by `transformers`."""
    hf = hf_random_gpt2(num_layers=2)
    small = from_transformers(hf, model.tokenizer, "small", device=DEVICE)
    return small, hf_greedy(hf, PROMPTS, PARAMS.max_new_tokens)


def tokens_of(model, **parts):
    engine = InferenceEngine(model, EngineConfig(max_batch_size=4), BEFORE.with_(ops=LayerOps, **parts))
    assert bool(engine.decode_step.runner.graphs) is bool(parts or DEVICE == "cuda")
    return [result.token_ids for result in engine.generate(PROMPTS, PARAMS)]


def one_token_each(model, ops, token_ids):
    """Logits [B, V] after a token alone: attention gives its own v."""
    computed = model.with_ops(ops)
    hidden = computed.hidden(token_ids, torch.zeros_like(token_ids), lambda layer_idx, q, k, v: v)
    return computed.logits(hidden)


def test_greedy_tokens_of_graphs_equal_transformers(pair):
    model, expected = pair
    assert tokens_of(model, **ON_A_CPU) == expected


def test_all_weights_are_met_before_the_first_step(pair):
    """A graph that is captured must find them there. The logits, and the choice, are those of the plain operations."""
    model, _ = pair
    ops, token_ids = LayerOps(model, EngineConfig()), torch.arange(3, device=DEVICE)
    before = dict(ops.maps.maps)
    assert len(before) == 4 * model.shape.num_layers + 1
    plain = one_token_each(model, PlainOps(), token_ids)
    five = one_token_each(model, ops, token_ids)
    torch.testing.assert_close(five, plain, atol=5e-6 * float(plain.abs().max()), rtol=0)
    assert ops.maps.maps == before
    best = argmax(five).tolist()
    for given in (five, five.clone()):  # which need not be the ones that were just made
        chosen, lens = torch.zeros(3, dtype=torch.int64, device=DEVICE), torch.arange(3, device=DEVICE)
        assert ops.choose(given, torch.ones_like(lens), chosen, lens).tolist() == best
        assert (chosen.tolist(), lens.tolist()) == (best, [1, 2, 3])


# -- where the kernels cannot run, or do not pay ---------------------------------------------------------------------


def test_more_rows_than_pay_go_to_the_library(pair):
    model, _ = pair
    ops = LayerOps(model, EngineConfig())
    token_ids = torch.arange(257, device=DEVICE) % model.shape.vocab_size
    assert isinstance(ops.embed(token_ids, token_ids * 0, model.wte, model.wpe), Residual)
    assert not isinstance(ops.embed(token_ids[:256], token_ids[:256] * 0, model.wte, model.wpe), Residual)
    expected = one_token_each(model, PlainOps(), token_ids)
    torch.testing.assert_close(one_token_each(model, ops, token_ids), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lacking", ["Triton", "shared memory"])
def test_an_engine_without_the_kernels_goes_on_with_the_library(pair, monkeypatch, lacking):
    model, expected = pair
    if lacking == "Triton":
        monkeypatch.setattr(five_kernels, "triton_runs_on", lambda device: False)
        monkeypatch.setattr(LayerOps, "anywhere", False)
    else:
        monkeypatch.setattr(fused, "limits_of", lambda device: (1000, 1))
    ops = LayerOps(model, EngineConfig())
    assert (ops.fused, list(ops.maps)) == (None, [])
    assert tokens_of(model) == expected


def test_a_model_that_takes_no_operations_has_no_folded_weights():
    ops = LayerOps(SimpleNamespace(dtype=torch.float32, device=torch.device(DEVICE)), EngineConfig())
    assert list(ops.maps) == []
