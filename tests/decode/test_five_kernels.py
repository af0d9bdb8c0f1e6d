"""The operations of a layer in five kernels: an engine over them gives the logits and tokens of the plain one.

On a CPU the kernels go through the interpreter.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode import five_kernels
from rosecourse.decode.folding import folded_bytes
from rosecourse.decode.ops import Residual
from rosecourse.decode.sampling import argmax
from rosecourse.kernels import FusedLinears, fused, triton_runs_on
from rosecourse.lab.checking.cpu_runners import CPUGraphRunner, FixedWidthForward
from rosecourse.models.gpt2 import GPT2
from rosecourse.models.load import from_transformers, without_numbers
from rosecourse.models.ops import LayerOps as PlainOps
from tests.support.oracles import hf_greedy, hf_random_gpt2, prompts_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
BEFORE = lesson("069").after
PARAMS = SamplingParams(max_new_tokens=8, stop_on_eos=False)
LENGTHS = [1, 4, 17]


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
    """A small random GPT-2, of `transformers` and of the engine."""
    hf = hf_random_gpt2(num_layers=2)
    return hf, from_transformers(hf, model.tokenizer, "small", device=DEVICE)


def engine_of(model, ops, **parts) -> InferenceEngine:
    return InferenceEngine(model, EngineConfig(max_batch_size=4), BEFORE.with_(ops=ops, **parts))


def next_logits(model, ops, steps=2):
    """The logits of some greedy steps after the prompts."""
    engine, found = engine_of(model, ops), []
    sessions = [engine.new_session(prompt, PARAMS) for prompt in prompts_of(LENGTHS, model.shape.vocab_size)]
    logits = engine.prefill(sessions)
    for _ in range(steps):
        engine.take_tokens(sessions, logits)
        logits = engine.decode_step_sessions(sessions)
        found.append(logits)
    return torch.stack(found)


def test_logits_are_those_of_the_plain_operations(pair):
    plain, five = (next_logits(pair[1], ops) for ops in (PlainOps, LayerOps))
    torch.testing.assert_close(five, plain, atol=5e-6 * float(plain.abs().max()), rtol=0)


def greedy(engine, vocab_size):
    return [result.token_ids for result in engine.generate(prompts_of(LENGTHS, vocab_size), PARAMS)]


def test_greedy_tokens_of_graphs_equal_transformers(pair):
    hf, model = pair
    expected = hf_greedy(hf, prompts_of(LENGTHS, model.shape.vocab_size), PARAMS.max_new_tokens)
    on_a_cpu = {"runner": CPUGraphRunner, "forward": FixedWidthForward}
    engine = engine_of(model, LayerOps, **on_a_cpu if DEVICE == "cpu" else {})
    assert engine.decode_step.runner.graphs
    assert greedy(engine, model.shape.vocab_size) == expected


def one_token_each(model, ops, token_ids):
    """Logits [B, V] after a token alone: attention gives its own v."""
    computed = model.with_ops(ops)
    hidden = computed.hidden(token_ids, torch.zeros_like(token_ids), lambda layer_idx, q, k, v: v)
    return computed.logits(hidden)


def test_all_weights_are_met_before_the_first_step(pair):
    """A graph that is captured must find them there."""
    _, model = pair
    ops = LayerOps(model, EngineConfig())
    before = dict(ops.maps.maps)
    assert len(before) == 4 * model.shape.num_layers + 1
    one_token_each(model, ops, torch.arange(3, device=DEVICE))
    assert ops.maps.maps == before
    assert ops.maps.num_bytes == folded_bytes(without_numbers(model.shape, model.dtype))
    assert ops.maps.num_bytes > sum(len(each.weight) * each.weight.shape[1] * 4 for each in ops.maps)


class NormsAnew(GPT2):
    """A model that wraps a weight at each call, as one may that loads it late."""

    def logits(self, hidden):
        return self.ops.logits(hidden, replace(self.ln_f), self.wte)


def test_a_model_that_makes_norms_anew_keeps_the_library(pair):
    """Folded in each step, they would take ever more memory, and be missing in a graph."""
    _, model = pair
    ops = LayerOps(NormsAnew(model.shape, model.weights, None, "anew"), EngineConfig())
    assert ops.fused is None
    assert ops.maps.num_bytes == 0


def test_the_choice_does_not_need_logits_that_were_just_made(pair):
    _, model = pair
    ops = LayerOps(model, EngineConfig())
    logits = one_token_each(model, ops, torch.arange(3, device=DEVICE))
    best = argmax(logits).tolist()
    for given in (logits, logits.clone()):
        token_ids, lens = torch.zeros(3, dtype=torch.int64, device=DEVICE), torch.arange(3, device=DEVICE)
        assert ops.choose(given, torch.ones_like(lens), token_ids, lens).tolist() == best
        assert (token_ids.tolist(), lens.tolist()) == (best, [1, 2, 3])


# -- where the kernels cannot run, or do not pay ---------------------------------------------------------------------


def test_more_rows_than_pay_go_to_the_library(pair):
    _, model = pair
    ops, plain = LayerOps(model, EngineConfig()), PlainOps()
    token_ids = torch.arange(257, device=DEVICE) % model.shape.vocab_size
    assert isinstance(ops.embed(token_ids, token_ids * 0, model.wte, model.wpe), Residual)
    assert not isinstance(ops.embed(token_ids[:256], token_ids[:256] * 0, model.wte, model.wpe), Residual)
    expected = one_token_each(model, plain, token_ids)
    torch.testing.assert_close(one_token_each(model, ops, token_ids), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lacking", ["Triton", "shared memory"])
def test_an_engine_without_the_kernels_goes_on_with_the_library(pair, monkeypatch, lacking):
    hf, model = pair
    if lacking == "Triton":
        monkeypatch.setattr(five_kernels, "triton_runs_on", lambda device: False)
        monkeypatch.setattr(LayerOps, "anywhere", False)
    else:
        monkeypatch.setattr(fused, "shared_memory_of", lambda device: 1000)
    ops = LayerOps(model, EngineConfig())
    assert (ops.fused, list(ops.maps)) == (None, [])
    expected = hf_greedy(hf, prompts_of(LENGTHS, model.shape.vocab_size), PARAMS.max_new_tokens)
    assert greedy(engine_of(model, LayerOps), model.shape.vocab_size) == expected


def test_other_dtypes_and_other_models():
    assert LayerOps(SimpleNamespace(dtype=torch.float64, device=torch.device("cpu")), EngineConfig()).fused is None
    without = LayerOps(SimpleNamespace(dtype=torch.float32, device=torch.device(DEVICE)), EngineConfig())
    assert list(without.maps) == []  # a model that takes no operations
