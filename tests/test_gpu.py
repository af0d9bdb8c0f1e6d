"""The engine on a GPU: the same tokens and logits as elsewhere."""

import pytest
import torch
from oracles import hf_greedy, hf_next_logits, prompts_of

from rosecourse import (
    BEST,
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    SamplingParams,
    SchedulerManager,
    load_model,
)
from rosecourse.kernels.paged_attention import TritonAttention
from rosecourse.lessons.forward.dense import DecodeForward as DenseForward

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PARTS = {"best": BEST, "dense": BEST.with_(forward=DenseForward)}
LENGTHS = [1, 5, 63, 64, 65, 127, 128, 129]


@pytest.fixture(scope="module")
def exact():
    return load_model(dtype="float32", device="cuda")


@pytest.mark.parametrize("parts", PARTS)
def test_greedy_tokens_equal_transformers(exact, hf_model, parts):
    prompts = prompts_of(LENGTHS, exact.shape.vocab_size)
    engine = InferenceEngine(exact, EngineConfig(max_batch_size=8), PARTS[parts])
    results = engine.generate(prompts, SamplingParams(max_new_tokens=80, stop_on_eos=False))
    assert [r.token_ids for r in results] == hf_greedy(hf_model, prompts, 80)
    engine.kv.check([], engine.prefix_cache.entries())


def test_the_triton_kernel_is_what_runs(exact):
    engine = InferenceEngine(exact)
    assert isinstance(engine.decode_step.forward.paged_attention, TritonAttention)


@pytest.mark.parametrize(("dtype", "share"), [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 0.1)])
def test_logits_stay_within_a_bound_of_transformers(hf_model, dtype, share):
    """`share` is of the largest logit: rounding grows with the numbers."""
    model = load_model(dtype=dtype, device="cuda")
    engine = InferenceEngine(model, EngineConfig(max_batch_size=8))
    params = SamplingParams(max_new_tokens=20, stop_on_eos=False)
    sessions = [engine.new_session(p, params) for p in prompts_of(LENGTHS, model.shape.vocab_size)]
    logits = engine.prefill(sessions)
    for _ in range(10):
        for session, row in zip(sessions, logits.float().cpu(), strict=True):
            expected = hf_next_logits(hf_model, session.token_ids)
            bound = share * float(expected.abs().max())
            torch.testing.assert_close(row, expected, atol=bound, rtol=0)
        engine.take_tokens(sessions, logits)
        logits = engine.decode_step_sessions(sessions)


def test_sampled_streams_repeat(exact):
    engine = InferenceEngine(exact)
    params = [SamplingParams(max_new_tokens=30, temperature=1.0, seed=s) for s in (1, 2, 1)]
    runs = [[r.token_ids for r in engine.generate([[5, 6, 7]] * 3, params)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][0] == runs[0][2] != runs[0][1]


def test_streaming(exact):
    params = SamplingParams(max_new_tokens=20, stop_on_eos=False)
    engine = InferenceEngine(exact)
    expected = [r.token_ids for r in engine.generate([[n, 6, 7] for n in range(1, 9)], params)]
    with SchedulerManager(OnlineScheduler(engine, max_batch_size=4)) as manager:
        streams = [manager.submit([n, 6, 7], params) for n in range(1, 9)]
        assert [[token.token_id for token in stream] for stream in streams] == expected
