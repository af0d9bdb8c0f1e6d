"""Pads and graphs of prefills: the logits, K and V of the operations one by one, whatever prompts came before."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams, load_model, random_model
from rosecourse.decode.prefill import (
    LEAST,
    MOST,
    Pads,
    Prefill,
    VarlenAttention,
    no_pads,
    pad_to_bucket,
    pads_for,
    prompt_graphs,
)
from rosecourse.lab.checking.cpu_graph import CPUGraph
from tests.support.grouped_model import GroupedModel, GroupedShape
from tests.support.oracles import prompts_of

FOUR = SamplingParams(max_new_tokens=4)
VOCABULARY = 60  # of the prompts' tokens


def varlen(q, k, v, ends, all_ends, longest, longest_of_all, *, window_size):
    """`varlen_attn` by operations that a graph can hold: which token sees which is decided on the device."""
    assert window_size == (-1, 0)
    rows, columns = torch.arange(len(q)), torch.arange(len(k))
    session = torch.bucketize(rows, ends[1:].long(), right=True)
    theirs = torch.bucketize(columns, all_ends[1:].long(), right=True)
    from_end = (ends[1:].long()[session] - rows)[:, None] <= (all_ends[1:].long()[theirs] - columns)[None]
    seen = (session[:, None] == theirs[None]) & from_end  # [N, sum of totals]
    scores = torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


class GraphPrefill(Prefill):
    """As on a GPU, with graphs of a CPU."""

    new_graph = CPUGraph

    def __init__(self, model, kv, config):
        self.computed = []  # the rows of what is computed without a replay
        super().__init__(model, kv, config)
        self.attention = VarlenAttention(kv, model.shape.num_heads // model.shape.num_kv_heads, varlen)
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
    for batch in batches:
        prompts = prompts_of(batch, VOCABULARY)
        assert_alike(prefilled(graph, prompts), prefilled(plain, prompts))
    assert not graph.prompts.computed, "all of them are short"


@pytest.mark.parametrize(("shared_heads", "block_size"), [(False, 1), (False, 64), (True, 4)])
def test_other_block_sizes_and_shared_heads(small_model, shared_heads, block_size):
    model = GroupedModel(GroupedShape(4, 2), None) if shared_heads else small_model
    engines = [engine_with(model, kind, block_size=block_size, num_blocks=300) for kind in (GraphPrefill, Prefill)]
    prompts = prompts_of([3, 9, 1, 17, 36], VOCABULARY)
    assert_alike(*(prefilled(engine, prompts) for engine in engines))


def test_logits_stay_when_others_are_computed(engines):
    graph, _ = engines
    first, _ = prefilled(graph, [[1, 2, 3]])
    kept = first.clone()
    prefilled(graph, [[4, 5, 6], [7]])
    assert torch.equal(first, kept)


def test_a_graph_for_each_size_up_to_the_most(small_model):
    for sizes, expected in (
        ({"max_batch_size": 1, "max_seq_len": 9}, [64]),
        ({"max_batch_size": 5, "max_seq_len": 40}, [64, 128, 192, 256]),
        ({"max_batch_size": 20, "max_seq_len": 40}, [64 * n for n in range(1, 9)]),
    ):
        assert sorted(engine_with(small_model, **sizes).prompts.graphs) == expected


def test_long_prefills_and_prefix_hits_are_launched(small_model):
    engine, plain = (
        engine_with(small_model, kind, max_batch_size=16, num_blocks=150) for kind in (GraphPrefill, Prefill)
    )
    long = prompts_of([36] * 15, VOCABULARY)
    assert_alike(prefilled(engine, long), prefilled(plain, long))
    assert engine.prompts.computed == [576]
    (prompt,) = prompts_of([9], VOCABULARY)
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
    prompts = prompts_of([3, 9], VOCABULARY)
    assert_alike(prefilled(engine, prompts), prefilled(engine_with(small_model, Prefill), prompts))
    assert engine.prompts.computed == [64]


# -- pads -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300_000))
def test_sizes_are_near_and_few(num_tokens):
    size = pad_to_bucket(num_tokens)
    assert num_tokens <= size == pad_to_bucket(size)
    assert size - num_tokens < max(LEAST, num_tokens / 8)
    assert len({pad_to_bucket(n) for n in range(1, MOST + 1)}) == 8


SIZES = {"few": pad_to_bucket, "odd": lambda n: n + 11, "one more": lambda n: n + 1, "as it is": lambda n: n}


def padded(size):
    class PaddedPrefill(Prefill):
        def __init__(self, model, kv, config):
            super().__init__(model, kv, config)
            self.pads = Pads(model, kv, SIZES[size])

    return PaddedPrefill


@pytest.mark.parametrize(
    ("size", "block_size"), [*(("few", size) for size in (1, 4, 64)), ("odd", 4), ("one more", 1), ("as it is", 64)]
)
def test_pads_change_no_logits(small_model, size, block_size):
    """Twice the same prompts: the second time the prefix cache has their beginnings."""
    engines = [engine_with(small_model, kind, block_size=block_size) for kind in (Prefill, padded(size))]
    for _ in range(2):
        prompts = prompts_of([3, 9, 1, 17], VOCABULARY)
        assert_alike(*(prefilled(engine, prompts, remember=True) for engine in engines))


@pytest.mark.parametrize(("prefill", "block_size"), [*((padded("few"), n) for n in (1, 4, 64)), (GraphPrefill, 4)])
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
    kv = InferenceEngine(small_model, EngineConfig(block_size=block_size, max_batch_size=1)).kv
    for num_tokens in (1, 63, 64, 65, 100):
        pads = Pads(small_model, kv)(num_tokens)
        assert num_tokens + sum(len(pad.token_ids) for pad in pads) == pad_to_bucket(num_tokens)
        assert all(len(pad.token_ids) <= min(block_size, small_model.shape.context) for pad in pads)
        assert all(pad.table == [kv.num_blocks] for pad in pads)


def test_a_cpu_has_neither(small_model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = engine_with(small_model, Prefill)
    assert engine.prompts.graphs == {}
    assert pads_for(small_model, engine.kv) is no_pads
    assert no_pads(3) == []


# -- on a GPU ---------------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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
        for expected, got in zip(*found, strict=True):
            error = (got.double() - expected.double()).norm() / expected.double().norm()
            assert error < (2e-3 if dtype == "float16" else 2e-2)


@pytest.mark.gpu
@gpu
def test_on_a_gpu_a_short_prefill_is_one_replay(monkeypatch):
    model = load_model(dtype="float16", device="cuda")
    engine = engine_with(model, Prefill)
    monkeypatch.setattr(type(engine.prompts), "compute", lambda *args: pytest.fail("not a replay"))
    logits, _ = prefilled(engine, prompts_of([3, 9, 30], VOCABULARY))
    assert logits.isfinite().all()


@pytest.mark.gpu
@gpu
def test_on_a_gpu_float32_has_none():
    """Its attention is by groups of equal lengths, which the host has to know."""
    engine = engine_with(load_model(dtype="float32", device="cuda"), Prefill)
    assert engine.prompts.graphs == {}
    logits, _ = prefilled(engine, prompts_of([3, 9, 30], VOCABULARY))
    assert logits.isfinite().all()


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
