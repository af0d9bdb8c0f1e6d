"""Attention, pads and graphs of prefills: logits, K and V as of the operations one by one, whatever came before."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.varlen import varlen_attn

from rosecourse import BEST, EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, load_model, random_model
from rosecourse.decode.prefill import (
    LEAST,
    MOST,
    AttentionByGroups,
    Pads,
    Prefill,
    VarlenAttention,
    pad_to_bucket,
    prompt_attention_for,
    prompt_graphs,
)
from rosecourse.kernels.reference import PromptAttention
from rosecourse.lab.checking.cpu_graph import CPUGraph
from tests.support.grouped_model import GroupedModel, GroupedShape
from tests.support.oracles import prompts_of

FOUR = SamplingParams(max_new_tokens=4)


def some_prompts(lengths, seed=0):
    return prompts_of(lengths, 60, seed)


def varlen(q, k, v, ends, ends_of_k, longest, longest_of_k, *, window_size):
    """`varlen_attn` by operations that a graph can hold: which token sees which is decided on the device."""
    assert window_size == (-1, 0)
    assert q.shape == k.shape == v.shape, "heads are not shared here, and nothing is cached"
    assert ends is ends_of_k
    assert ends.dtype == torch.int32
    row = torch.arange(len(q))
    session = torch.bucketize(row, ends[1:].long(), right=True)
    seen = (session[:, None] == session) & (row[:, None] >= row)
    scores = torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


class GraphPrefill(Prefill):
    """As on a GPU, with graphs of a CPU."""

    new_graph = CPUGraph

    def __init__(self, model, kv, config):
        self.computed = []  # the rows of what is computed without a replay
        super().__init__(model, kv, config)
        group = model.shape.num_heads // model.shape.num_kv_heads
        self.attention = VarlenAttention(kv, group, varlen)
        self.attention.of_cached = PromptAttention(kv, group)  # the interpreter takes long
        self.pads = Pads(model, kv)
        self.graphs = prompt_graphs(super().compute, kv, config, self.new_graph)

    def compute(self, tokens, rows):
        self.computed.append(len(tokens.token_ids))
        return super().compute(tokens, rows)


def engine_with(model, prefill=GraphPrefill, **config):
    asked = {"block_size": 4, "max_batch_size": 12, "max_seq_len": 40, "num_blocks": 130} | config
    engine = InferenceEngine(model, EngineConfig(**asked), BEST.with_(prefill=prefill))
    for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
        cache.fill_(torch.nan)  # what a pad has left must not be read, nor what nobody has written
    return engine


def prefilled(engine, prompts, remember=False):
    """Logits of a prefill, and the K and V of all its tokens. remember: the prefix cache learns of them."""
    sessions = [engine.new_session(prompt, FOUR) for prompt in prompts]
    logits = engine.prefill(sessions)
    if remember:
        engine.take_tokens(sessions, logits)
    tables = engine.kv.block_indices([session.table for session in sessions])[0]
    found = []
    for table, session in zip(tables, sessions, strict=True):
        length = len(session.prompt_ids)
        blocks = table[: engine.config.blocks_for(length)]
        for cache in (*engine.kv.k_layers, *engine.kv.v_layers):  # [blocks, H, block_size, D] to [tokens, H, D]
            found.append(cache[blocks].transpose(1, 2).flatten(0, 1)[:length])
    for session in sessions:
        engine.free(session)
    engine.audit([])
    return logits, torch.cat(found)


def assert_alike(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def engines(small_model):
    return engine_with(small_model, prefix_cache=False), engine_with(small_model, Prefill, prefix_cache=False)


# -- graphs -----------------------------------------------------------------------------------------------------------

lengths = st.lists(st.integers(1, 36), min_size=1, max_size=12)


@settings(max_examples=20, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=3))
def test_a_replay_is_what_the_operations_are(engines, batches):
    """One prefill after another in the same memory: of fewer prompts than before, and of more."""
    graph, plain = engines
    kept = [(prefilled(graph, prompts), prefilled(plain, prompts)) for prompts in map(some_prompts, batches)]
    for found, expected in kept:  # the logits stay when others are computed
        assert_alike(found, expected)
    assert not graph.prompts.computed, "all of them are short"


@pytest.mark.parametrize(("batch", "length", "most"), [(1, 9, 64), (5, 40, 256), (20, 40, 512)])
def test_a_graph_for_each_size_up_to_the_most(small_model, batch, length, most):
    engine = engine_with(small_model, max_batch_size=batch, max_seq_len=length)
    assert sorted(engine.prompts.graphs) == [*range(64, most + 1, 64)]


def test_long_prefills_and_prefix_hits_are_launched(small_model):
    engine, plain = (
        engine_with(small_model, kind, max_batch_size=16, num_blocks=150) for kind in (GraphPrefill, Prefill)
    )
    long = some_prompts([36] * 15)
    assert_alike(prefilled(engine, long), prefilled(plain, long))
    assert engine.prompts.computed == [576]
    (prompt,) = some_prompts([9])
    for prompts in ([prompt], [[*prompt, 5, 6], [3]]):
        assert_alike(*(prefilled(one, prompts, remember=True) for one in (engine, plain)))
    assert engine.prompts.computed == [576, 64], "the first of the two is a replay, and the second has a hit"


def test_where_a_capture_fails_they_are_launched(small_model):
    class OutOfMemory(CPUGraph):
        def capture(self, work):
            raise RuntimeError("out of memory\nand a long story")

    class Without(GraphPrefill):
        new_graph = OutOfMemory

    with pytest.warns(UserWarning, match="^no graph of a prefill of 448 tokens, so they run eagerly: out of memory$"):
        engine = engine_with(small_model, Without, max_batch_size=11)
    assert engine.prompts.graphs == {}
    prompts = some_prompts([3, 9])
    assert_alike(prefilled(engine, prompts), prefilled(engine_with(small_model, Prefill), prompts))
    assert engine.prompts.computed == [64]


def completions(engine, prompts):
    scheduler, sessions = OnlineScheduler(engine), [engine.new_session(prompt, FOUR) for prompt in prompts]
    for session in sessions:
        scheduler.submit(session)
    scheduler.run()
    return [session.completion_ids for session in sessions]


@pytest.mark.parametrize("shared_heads", [False, True])
@pytest.mark.parametrize(("budget", "block_size"), [(12, 4), (64, 1), (100, 16), (600, 64)])
def test_a_mixed_step_is_one_replay(small_model, budget, block_size, shared_heads):
    """With a budget of tokens a step, the cache has the beginnings of sessions, and of prompts that it knows."""
    model = GroupedModel(GroupedShape(4, 2), None) if shared_heads else small_model
    sizes = {"block_size": block_size, "num_blocks": 300, "max_num_batched_tokens": budget}
    mixed, plain = engine_with(model, **sizes), engine_with(model, Prefill, block_size=block_size, num_blocks=300)
    assert sorted(mixed.prompts.graphs) == [*range(64, min(pad_to_bucket(budget), MOST) + 1, 64)]
    for prompts in (some_prompts([3, 30, 9, 1, 36, 17, 20]), some_prompts([30, 36, 36], seed=1)) * 2:
        assert completions(mixed, prompts) == completions(plain, prompts)
    assert not mixed.prompts.computed, "all of them are short"
    mixed.audit([])


# -- attention --------------------------------------------------------------------------------------------------------


def test_one_call_a_layer_and_for_hits_one_that_reads_the_cache(small_model):
    """That both are right, the pads below look at."""
    engine, called = engine_with(small_model), []
    engine.prompts.graphs.clear()  # a replay calls no Python
    attention = engine.prompts.attention

    def noted(q, k, v, ends, _, *longest, **window):
        assert longest == 2 * (int(ends.diff().max()),)
        called.append("varlen")
        return varlen(q, k, v, ends, ends, *longest, **window)

    plan = attention.of_cached.plan
    attention.varlen = noted
    attention.of_cached.plan = lambda tokens: (called.append("cached"), plan(tokens))[1]
    for expected in (["varlen"] * small_model.shape.num_layers, ["cached"]):
        prefilled(engine, some_prompts([3, 17, 9]), remember=True)
        assert called == expected
        called.clear()


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "kind"),
    [
        ("cpu", torch.float32, None, AttentionByGroups),
        ("cpu", torch.bfloat16, None, AttentionByGroups),
        ("cuda", torch.float32, (9, 0), AttentionByGroups),
        ("cuda", torch.float16, (7, 5), AttentionByGroups),
        ("cuda", torch.float16, (8, 0), VarlenAttention),
        ("cuda", torch.bfloat16, (9, 0), VarlenAttention),
    ],
)
def test_one_call_where_flash_attention_can_be(monkeypatch, device, dtype, capability, kind):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    model = SimpleNamespace(dtype=dtype, shape=SimpleNamespace(num_heads=6, num_kv_heads=2))
    attention = prompt_attention_for(model, SimpleNamespace(device=torch.device(device)))
    assert (type(attention), attention.heads_per_kv_head) == (kind, 3)


# -- pads -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300_000))
def test_sizes_are_near_and_few(num_tokens):
    size = pad_to_bucket(num_tokens)
    assert num_tokens <= size == pad_to_bucket(size)
    assert size - num_tokens < max(LEAST, num_tokens / 8)
    assert len({pad_to_bucket(n) for n in range(1, MOST + 1)}) == 8


def padded(size):
    class PaddedPrefill(Prefill):
        def __init__(self, model, kv, config):
            super().__init__(model, kv, config)
            self.pads = Pads(model, kv, size)

    return PaddedPrefill


FEW, AS_IT_IS = padded(pad_to_bucket), padded(lambda n: n)
PADDED = [(FEW, 1), (FEW, 4), (FEW, 64), (padded(lambda n: n + 11), 4), (padded(lambda n: n + 1), 1), (AS_IT_IS, 64)]


@pytest.mark.parametrize("shared_heads", [False, True])
@pytest.mark.parametrize(("prefill", "block_size"), [*PADDED, *((GraphPrefill, size) for size in (1, 4, 64))])
def test_pads_change_no_logits(small_model, prefill, block_size, shared_heads):
    """Twice the same prompts: the second time the prefix cache has their beginnings."""
    model = GroupedModel(GroupedShape(4, 2), None) if shared_heads else small_model
    engines = [engine_with(model, kind, block_size=block_size, num_blocks=300) for kind in (Prefill, prefill)]
    for _ in range(2):
        prompts = some_prompts([3, 9, 1, 17])
        assert_alike(*(prefilled(engine, prompts, remember=True) for engine in engines))


@pytest.mark.parametrize(("prefill", "block_size"), [*PADDED[:3], (GraphPrefill, 4)])
def test_pads_write_where_no_session_can_be(small_model, prefill, block_size):
    """A capture does nothing, and a replay writes as the operations do."""
    engine = engine_with(small_model, prefill, block_size=block_size)
    engine.prefill([engine.new_session([5] * 9, FOUR)])
    for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
        written = ~cache.isnan().any(dim=(1, 3))  # [blocks, slots]
        assert written[: engine.kv.num_blocks].sum() == 9, "the session's, and no other"
        assert written[engine.kv.num_blocks].sum() == min(block_size, LEAST - 9)


@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_a_pad_fits_into_a_block_and_into_the_context(small_model, block_size):
    """An engine on a CPU has none, and no graphs."""
    engine = engine_with(small_model, Prefill, block_size=block_size)
    assert (engine.prompts.graphs, engine.prompts.pads(3)) == ({}, [])
    for num_tokens in (1, 63, 64, 65, 100):
        pads = Pads(small_model, engine.kv)(num_tokens)
        assert num_tokens + sum(len(pad.token_ids) for pad in pads) == pad_to_bucket(num_tokens)
        assert all(len(pad.token_ids) <= min(block_size, small_model.shape.context) for pad in pads)
        assert all(pad.table == [engine.kv.num_blocks] for pad in pads)


# -- on a GPU ---------------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def assert_near(expected, found, bound):
    for one, other in zip(expected, found, strict=True):
        assert (other.double() - one.double()).norm() < bound * one.double().norm()


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [load_model, lambda **kind: random_model("gpt2", **kind)], ids=["shipped", "gpt2"])
def test_on_a_gpu(make, dtype):
    model = make(dtype=dtype, device="cuda")
    engine = engine_with(model, Prefill, max_batch_size=40, num_blocks=400, prefix_cache=False)
    graphs, none = engine.prompts.graphs, {}
    assert sorted(graphs) == [64 * n for n in range(1, 9)]
    draw = torch.Generator().manual_seed(0)
    for count in (1, 40, 3, 17, 40, 2):
        lengths = torch.randint(1, 13, (count,), generator=draw).tolist()
        prompts = [torch.randint(0, model.shape.vocab_size, (n,), generator=draw).tolist() for n in lengths]
        found = []
        for engine.prompts.graphs in (none, graphs):
            found.append(prefilled(engine, prompts))
        assert_near(*found, 2e-3 if dtype == "float16" else 2e-2)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_a_gpu_flash_attention_is_one_call_a_layer(dtype):
    """No call that plans for a shape, neither cuDNN's nor another; the second time prompts hit the prefix cache."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("FlashAttention needs an Ampere GPU or a newer one")
    model = load_model(dtype=dtype, device="cuda")
    flash, groups = (engine_with(model, Prefill, max_batch_size=8) for _ in range(2))
    flash.prompts.graphs.clear()  # a replay calls no Python
    groups.prompts.graphs.clear()
    groups.prompts.attention = AttentionByGroups(groups.kv, 1)
    batches = 2 * [[3], [5, 5, 5], [9, 1, 36], [2, 17, 16, 33]]
    with patch.object(flash.prompts.attention, "varlen", wraps=varlen_attn) as called:
        for seed, lengths in enumerate(batches):
            prompts = some_prompts(lengths, seed % 4)
            with patch.object(F, "scaled_dot_product_attention", side_effect=AssertionError("a plan for a shape")):
                found = prefilled(flash, prompts, remember=True)
            expected = prefilled(groups, prompts, remember=True)
            assert_near(expected, found, 4e-3 if dtype == "float16" else 4e-2)
    assert called.call_count == (len(batches) // 2 + 1) * model.shape.num_layers, "a prompt of a block has no hit"


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_on_a_gpu_a_short_prefill_is_one_replay(monkeypatch, dtype):
    """Not in float32, whose attention is by groups of equal lengths, which the host has to know."""
    engine = engine_with(load_model(dtype=dtype, device="cuda"), Prefill)
    if dtype == "float16":
        monkeypatch.setattr(type(engine.prompts), "compute", lambda *args: pytest.fail("not a replay"))
    assert (engine.prompts.graphs == {}) is (dtype == "float32")
    assert prefilled(engine, some_prompts([3, 9, 30]))[0].isfinite().all()
