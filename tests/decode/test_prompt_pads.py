"""Pads of a prefill: few sizes, the same logits, and nothing written but into the block that nobody holds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams, load_model
from rosecourse.decode.prefill import LEAST, Pads, Prefill, no_pads, pad_to_bucket, pads_for
from tests.support.oracles import prompts_of

FOUR = SamplingParams(max_new_tokens=4)
VOCABULARY = 60  # of the prompts' tokens
SIZES = {"few": pad_to_bucket, "odd": lambda n: n + 11, "one more": lambda n: n + 1, "as it is": lambda n: n}


def padded(size):
    class PaddedPrefill(Prefill):
        def __init__(self, model, kv, config):
            super().__init__(model, kv, config)
            self.pads = Pads(model, kv, size)

    return PaddedPrefill


def engine_with(model, prefill, block_size, **sizes):
    config = EngineConfig(block_size=block_size, max_batch_size=8, max_seq_len=40, num_blocks=90, **sizes)
    engine = InferenceEngine(model, config, BEST.with_(prefill=prefill))
    for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
        cache.fill_(torch.nan)  # what a pad has left must not be read, nor what nobody has written
    return engine


@given(st.integers(1, 300_000))
def test_sizes_are_few_and_near(num_tokens):
    size = pad_to_bucket(num_tokens)
    assert num_tokens <= size == pad_to_bucket(size)
    assert size - num_tokens < max(LEAST, num_tokens / 8)


def test_sizes_are_few():
    sizes = [0]
    while sizes[-1] < 128 * 1024:
        sizes.append(pad_to_bucket(sizes[-1] + 1))
    assert len(sizes[1:]) == 8 + 8 * 8
    assert len([size for size in sizes[1:] if size <= 512]) == 8


@pytest.mark.parametrize(
    ("size", "block_size"), [*(("few", size) for size in (1, 4, 64)), ("odd", 4), ("one more", 1), ("as it is", 64)]
)
def test_the_logits_are_those_without_pads(small_model, size, block_size):
    """Twice the same prompts: the second time the prefix cache has their beginnings."""
    engines = [engine_with(small_model, prefill, block_size) for prefill in (Prefill, padded(SIZES[size]))]
    prompts = prompts_of([3, 9, 1, 17], VOCABULARY)
    for _ in range(2):
        found = []
        for engine in engines:
            sessions = [engine.new_session(prompt, FOUR) for prompt in prompts]
            found.append(engine.prefill(sessions))
            engine.take_tokens(sessions, found[-1])
            for session in sessions:
                engine.free(session)
            engine.audit([])
        plain, filled = found
        assert filled.shape == plain.shape
        assert torch.isfinite(filled).all()
        torch.testing.assert_close(filled, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_pads_write_where_no_session_can_be(small_model, block_size):
    engine = engine_with(small_model, padded(pad_to_bucket), block_size)
    session = engine.new_session([5] * 9, FOUR)
    engine.prefill([session])
    written = [
        ~cache.isnan().any(dim=(1, 3)) for cache in (*engine.kv.k_layers, *engine.kv.v_layers)
    ]  # [blocks, slots]
    for slots in written:
        assert slots[: engine.kv.num_blocks].sum() == 9, "the session's, and no other"
        assert slots[engine.kv.num_blocks].sum() == min(block_size, LEAST - 9)


def test_a_pad_fits_into_a_block_and_into_the_context(small_model):
    for block_size in (1, 4, 64):
        kv = InferenceEngine(small_model, EngineConfig(block_size=block_size, max_batch_size=1)).kv
        for num_tokens in (1, 63, 64, 65, 100):
            pads = Pads(small_model, kv)(num_tokens)
            assert num_tokens + sum(len(pad.token_ids) for pad in pads) == pad_to_bucket(num_tokens)
            assert all(len(pad.token_ids) <= min(block_size, small_model.shape.context) for pad in pads)
            assert all(pad.table == [kv.num_blocks] for pad in pads)


def test_a_cpu_needs_none(small_model):
    kv = InferenceEngine(small_model, EngineConfig(max_batch_size=1)).kv
    assert pads_for(small_model, kv) is no_pads
    assert no_pads(3) == []


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@gpu
def test_on_a_gpu_the_products_come_in_pad_to_bucket(monkeypatch):
    model = load_model(dtype="float16", device="cuda")
    engine = InferenceEngine(model, EngineConfig(max_batch_size=8, max_seq_len=40))
    engine.prompts.graphs.clear()  # a replay calls no Python
    rows, hidden = set(), type(model).hidden
    monkeypatch.setattr(type(model), "hidden", lambda *args: rows.add(len(args[1])) or hidden(*args))
    for number in range(1, 9):
        sessions = [engine.new_session([7] * number, FOUR) for _ in range(number)]
        assert engine.prefill(sessions).isfinite().all()
        for session in sessions:
            engine.free(session)
    assert rows == {64}
