"""Paged attention: each implementation against dense attention, with shared and with own K and V heads.

On a CPU the Triton kernels go through the interpreter; on a GPU they run natively, and `-m gpu` takes them too.
"""

import re
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from rosecourse import ConfigError
from rosecourse.kernels import SparseAttention, paged_attention, paged_attention_for, reference
from rosecourse.kernels.appending_attention import AppendingAttention
from rosecourse.kernels.launch import Launch
from rosecourse.lessons.l035_blocks import KVBlockManager
from tests.kernels.attention_cases import (
    DEVICE,
    IMPLEMENTATIONS,
    INTERPRETED,
    TOLERANCE,
    a_case,
    check,
    let_overflow_raise,
    with_room,
)

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
NAMES = ["q", "k", "v", "table", "lens", "longest", "k_new", "v_new"]
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
# Block size, D, then by what else they go with: each pair of block size, dtype and group at least once.
SIZES = [(1, 5), (2, 7), (4, 3), (8, 64), (16, 12), (32, 33), (64, 80)]
GRID = [
    (name, dtype, block_size, D, 1 + (i + j) % 3, 1 + (i + j) % 4, bool((i + j) % 2))
    for i, (block_size, D) in enumerate(SIZES)
    for j, dtype in enumerate(TOLERANCE)
    for name in IMPLEMENTATIONS
    if name != "sparse" or (INTERPRETED and dtype == torch.float32)
]


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    let_overflow_raise(monkeypatch)


@pytest.mark.parametrize(("name", "dtype", "block_size", "D", "H", "group", "fused"), GRID)
def test_lengths_around_block_boundaries(name, dtype, block_size, D, H, group, fused):
    lengths = sorted({max(1, block_size - 1), block_size, block_size + 1, 2 * block_size})
    check(name, *a_case(lengths, H=H, D=D, block_size=block_size, dtype=dtype, group=group, fused=fused))


@each_implementation
def test_long_contexts_take_several_tiles(implementation):
    """The tile of the Triton kernel is 64 positions."""
    check(implementation, *a_case([63, 64, 65, 130, 200], H=1, block_size=16, group=3))


@each_implementation
def test_a_pool_of_more_than_2_to_the_31_elements(implementation):
    """Its last blocks lie past what an int32 offset reaches. Memory that is not used is not touched."""
    shape = {"H": 2, "D": 32, "block_size": 64, "group": 3}
    (q, k, _, table, lens, longest, k_new, v_new), dense = a_case([9], **shape, dtype=torch.float16)
    num_blocks = 2**31 // (2 * 64 * 32) + k.shape[0]
    pool = torch.empty((num_blocks, *k.shape[1:]), dtype=torch.float16, device=DEVICE)
    first = num_blocks - k.shape[0]
    pool[first:] = k
    check(implementation, (q, pool, pool, table + first, lens, longest, k_new, v_new), [dense[0][[0, 0]]])


@triton.jit
def _doubling_kernel(ptr, value):
    tl.store(ptr, value + value)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU integers wrap silently: the interpreter is where we look")
def test_the_interpreter_does_raise_on_overflow():
    """Guards the fixture above: without it the sum would wrap and the test of large pools could miss it."""
    with pytest.raises(Exception, match="overflow"):
        _doubling_kernel[(1,)](torch.zeros(1, dtype=torch.int32), 2**31 - 1)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, inside the interpreter
@pytest.mark.parametrize("bad", ["q", "k", "v", "k_new", "v_new"])
@each_implementation
def test_nan_in_one_head_reaches_its_own_group_alone(implementation, bad):
    """NaN in K or V head 1 makes query heads 2 and 3 NaN; NaN in query head 3 makes no other one NaN."""
    args, _ = a_case([6, 9], H=3, group=2)
    clean = IMPLEMENTATIONS[implementation](*args)
    args[NAMES.index(bad)][:, 3 if bad == "q" else 1] = float("nan")
    out = IMPLEMENTATIONS[implementation](*args)
    sick = [3] if bad == "q" else [2, 3]
    well = [h for h in range(6) if h not in sick]
    assert out[:, sick].isnan().all()
    assert torch.equal(out[:, well], clean[:, well])


# -- an engine's ----------------------------------------------------------------------------------------------------

IN_ENGINES = {
    "reference": lambda kv, num_heads: reference.ReferenceAttention(kv),
    "triton": lambda kv, num_heads: paged_attention.TritonAttention(kv),
    "appending": lambda kv, num_heads: AppendingAttention(kv),
    **({"sparse": SparseAttention} if INTERPRETED else {}),
}


@pytest.mark.parametrize("implementation", IN_ENGINES)
def test_an_engine_plans_once_for_layers_with_their_own_tables(implementation):
    q, k, v, table, lens, longest, k_new, v_new = with_room(a_case([5, 9, 2], group=3)[0])
    shape = {"num_kv_heads": k.shape[1], "head_dim": k.shape[3], "block_size": k.shape[2], "num_blocks": k.shape[0]}
    kv = KVBlockManager(num_layers=2, dtype=k.dtype, device=DEVICE, **shape)
    moved = torch.randperm(k.shape[0], generator=torch.Generator().manual_seed(2)).to(DEVICE)
    tables = torch.stack([table, torch.argsort(moved)[table.long()].int()])
    for layer, order in enumerate((torch.arange(k.shape[0], device=DEVICE), moved)):
        kv.k_layers[layer].copy_(k[order])
        kv.v_layers[layer].copy_(v[order])
    attention = IN_ENGINES[implementation](kv, q.shape[1])
    attention.plan(tables, lens, longest)
    expected = reference.paged_attention_decode(q, k, v, table, lens, longest, k_new, v_new)
    for layer in range(2):
        torch.testing.assert_close(attention.run(layer, q, k_new, v_new), expected, atol=1e-5, rtol=1e-5)
        for b, length in enumerate(lens.tolist() if implementation == "appending" else []):
            block, slot = tables[layer, b, length // 4], length % 4
            assert torch.equal(kv.k_layers[layer][block, :, slot], k_new[b])
            assert torch.equal(kv.v_layers[layer][block, :, slot], v_new[b])


def test_the_device_decides():
    kv = KVBlockManager(
        num_layers=1, num_kv_heads=1, head_dim=8, block_size=4, num_blocks=1, dtype=torch.float32, device=DEVICE
    )
    assert type(paged_attention_for(kv, 1)) is (SparseAttention if INTERPRETED else paged_attention.TritonAttention)
    if INTERPRETED:
        kv.k_layers = tuple(k.bfloat16() for k in kv.k_layers)
        assert type(paged_attention_for(kv, 1)) is reference.ReferenceAttention


@pytest.mark.skipif(not INTERPRETED, reason="for a CPU")
def test_scores_of_one_layer_or_step_do_not_reach_the_next():
    """The sparse product multiplies what lies in its output by 0: a score that is infinite or NaN would stay."""
    (q, k, v, table, lens, longest, k_new, v_new), _ = a_case([5, 9, 2])
    attention = SparseAttention(SimpleNamespace(k_layers=[k, k], v_layers=[v, v]), q.shape[1])
    attention.plan(torch.stack([table, table]), lens, longest)
    first, second = (attention.run(layer, q, k_new, v_new) for layer in range(2))
    assert torch.equal(first, second)
    attention.run(0, q * float("nan"), k_new, v_new)
    attention.plan(torch.stack([table, table]), lens, longest)
    assert torch.equal(attention.run(1, q, k_new, v_new), first)


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_launch(monkeypatch):
    """A kernel that is launched fails the test."""

    def launched(*_):
        raise AssertionError("launched")

    monkeypatch.setattr(Launch, "__call__", launched)


def heads(x, count):
    """The same with another number of heads, which stand in the second dimension."""
    return x[:, :1].expand(-1, count, *x.shape[2:]).contiguous()


MISFITS = [  # which tensor, what becomes of it, and what an error says
    ("q", lambda q: heads(q, 3), r"3 query heads cannot share 2 KV heads evenly: give a multiple of 2$"),
    ("q", lambda q: heads(q, 1), r"1 query heads cannot share 2 KV heads evenly"),
    ("q", lambda q: q[..., :4], r"q has heads of 4 numbers, the cache heads of 8: give the same$"),
    ("k_new", lambda k: heads(k, 4), r"k_new has 4 heads of 8 numbers, the cache 2 heads of 8: give"),
    ("k_new", lambda k: heads(k, 1), r"k_new has 1 heads of 8 numbers, the cache 2 heads of 8"),
    ("v_new", lambda v: heads(v, 1), r"v_new has 1 heads of 8 numbers, the cache 2 heads of 8"),
    ("v_new", lambda v: v[..., :7], r"v_new has 2 heads of 7 numbers, the cache 2 heads of 8"),
    ("v", lambda v: heads(v, 4), r"the cache of K is \[10, 2, 4, 8\], that of V \[10, 4,"),
]


@each_implementation
@pytest.mark.parametrize(("which", "change", "message"), MISFITS)
def test_heads_that_do_not_fit_are_refused_before_a_launch(no_launch, implementation, which, change, message):
    args = dict(zip(NAMES, a_case([6, 9], group=2)[0], strict=True))
    args[which] = change(args[which])
    for _ in range(2):  # a refusal is not remembered as a success
        with pytest.raises(ConfigError, match=f"^{message}"):
            IMPLEMENTATIONS[implementation](*args.values())


@pytest.mark.skipif(not INTERPRETED, reason="for a CPU")
def test_query_heads_other_than_those_planned_for_are_refused():
    (q, _, _, table, lens, longest, k_new, v_new), _ = a_case([6, 9], group=2)
    sizes = {"num_layers": 1, "num_kv_heads": 2, "head_dim": 8, "block_size": 4, "num_blocks": 10}
    kv = KVBlockManager(**sizes, dtype=q.dtype, device=DEVICE)
    attention = SparseAttention(kv, 6)
    attention.plan(table[None], lens, longest)
    message = "q, k_new and v_new are [(2, 4, 8), (2, 2, 8), (2, 2, 8)], planned were [(2, 6, 8), (2, 2, 8), (2, 2, 8)]"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}: plan for this batch first$"):
        attention.run(0, q, k_new, v_new)
    with pytest.raises(ConfigError, match=r"^5 query heads cannot share 2 KV heads evenly"):
        paged_attention_for(kv, 5)
