"""Paged attention: each implementation against float64, at sizes and numbers of every kind; what appends, appends."""

import pytest
import torch
import triton
import triton.language as tl

from rosecourse.kernels import SparseAttention, paged_attention, paged_attention_for, reference
from rosecourse.kernels.appending_attention import AppendingAttention, splits_for
from rosecourse.lessons.l035_blocks import KVBlockManager
from tests.kernels.attention_inputs import APPENDING, BLOCK_SIZE, IMPLEMENTATIONS, NAMES, Case, is_for, smallest
from tests.kernels.harness import DEVICE, INTERPRETED, MARKS, ROUNDING, pairwise, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore:All-NaN slice"),  # numpy's, inside the interpreter
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered"),
    *MARKS,
]
each_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


@pairwise(
    only=lambda name, dtype, _, group, width, *__: (
        is_for(name, dtype) and (name in APPENDING or (group < 17 and width < 1024))
    ),
    name=[*IMPLEMENTATIONS],
    dtype=[*ROUNDING],
    block_size=[1, 2, 4, 8, 16, 24, 32, 64],
    group=[1, 3, 17],
    width=[0, 1024, 1025],
    D=[3, 12, 33, 80, 128],
    H=[1, 2],
    fused=[True, False],
)
def test_sizes_of_every_kind(name, dtype, block_size, group, width, D, H, fused):
    """Lengths around the ends of blocks and of tiles; contexts of no token only where a step has pads.

    width: of the table, at least. Rows that are too long to be kept are looked up.
    """
    none = 0 if name in APPENDING else 1
    lengths = sorted({none, max(none, block_size - 1), block_size, 2 * block_size, 33, 70})
    Case(lengths, dtype, H, D, block_size, group, fused, width).check(name)


# -- numbers of every kind ------------------------------------------------------------------------------------------


def large_scores(sign):
    """Up to 2**16, and among the highest some that differ by 1 or 2: all exact. float16 ends at 65504."""

    def change(case):
        case.q.zero_()[..., :2] = torch.tensor([1024.0 * sign, 4.0])
        for k in case.k:
            k.zero_()[..., 0] = torch.randint(-2, 3, k.shape[:2], generator=case.generator) * 128.0
            k[..., 1] = torch.randint(0, 3, k.shape[:2], generator=case.generator)

    return change


def equal_scores(q, k):
    def change(case):
        for x, value in ((case.q, q), *((each, k) for each in case.k)):
            x.fill_(value)

    return change


def one_score_above_all(place):
    def change(case):
        equal_scores(8.0, -8.0)(case)
        for k in case.k:
            k[place] = 8.0

    return change


def large_values(case):
    """Their mean is no larger; a sum of them would be, in the dtype itself."""
    for v in case.v:
        v.copy_(torch.sign(v) * (60000.0 if case.dtype == torch.float16 else 2.0**120))


def subnormal_numbers(case):
    for k, v in zip(case.k, case.v, strict=True):
        k.copy_(torch.randint(-8, 9, k.shape, generator=case.generator) * smallest(case.dtype))
        v.fill_(256 * smallest(case.dtype))  # to take them for zero would be seen


KINDS = {
    "large scores": large_scores(1),
    "large scores below zero": large_scores(-1),
    "scores near the least float32": equal_scores(-(2.0**60), 2.0**60),  # an empty part must not outweigh them
    "equal scores": equal_scores(3.0, -0.5),
    "negative zeros": equal_scores(-0.0, -0.0),
    "the first above all": one_score_above_all(0),
    "the last cached one above all": one_score_above_all(-2),
    "the new one above all": one_score_above_all(-1),
    "large values": large_values,
    "subnormal numbers": subnormal_numbers,
}


def may_be(name, dtype, kind):
    if kind == "subnormal numbers" and dtype == torch.bfloat16 and name not in ("reference", "sparse"):
        return False  # the interpreter converts them wrongly, a GPU does it right
    return is_for(name, dtype) and (kind != "scores near the least float32" or dtype == torch.float32)


@pairwise(only=may_be, name=[*IMPLEMENTATIONS], dtype=[*ROUNDING], kind=[*KINDS])
def test_numbers_of_every_kind(name, dtype, kind):
    """Lengths: one token, a table that ends with a block, two tiles of the Triton kernel."""
    case = Case([1, BLOCK_SIZE - 1, 70], dtype)
    KINDS[kind](case)
    case.check(name)


@pairwise(name=[*IMPLEMENTATIONS], bad=["q", "k", "v", "k_new", "v_new"])
def test_nan_in_one_head_of_a_session_reaches_its_group_alone(name, bad):
    """NaN in K or V head 1 makes query heads 2 and 3 NaN; NaN in query head 3 makes no other one NaN."""
    args = Case([5, 34], H=2, group=2).args()
    clean = IMPLEMENTATIONS[name](*args)
    sick = args[NAMES.index(bad)]
    sick[args[3][1, 0] if bad in "kv" else 1, 3 if bad == "q" else 1] = float("nan")
    out = IMPLEMENTATIONS[name](*args)
    ill = torch.zeros(out.shape[:2], dtype=torch.bool, device=DEVICE)
    ill[1, [3] if bad == "q" else [2, 3]] = True
    assert out[ill].isnan().all()
    assert torch.equal(out[~ill], clean[~ill])


# -- tables and pools -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "width"), [("reference", 3), ("triton", 3), ("appending", 3), ("appending", 1025)])
def test_a_pool_of_more_than_2_to_the_31_elements(name, width):
    """Its last blocks lie past what an int32 offset reaches. Memory that is not used is not touched."""
    case = Case([9, 64], torch.float16, D=32, block_size=64, group=3)
    case.v = case.k
    q, k, _, table, lens, longest, k_new, _ = case.args()
    num_blocks = 2**31 // (2 * 64 * 32) + k.shape[0]
    pool = torch.empty((num_blocks, *k.shape[1:]), dtype=torch.float16, device=DEVICE)
    first = num_blocks - k.shape[0]
    pool[first:] = k
    far = torch.zeros(2, width, dtype=torch.int32, device=DEVICE)
    far[:, :3] = table + first
    case.attend(name, (q, pool, pool, far, lens, longest, k_new, k_new))
    if name in APPENDING:
        k[table[0, 0], :, 9], k[table[1, 1], :, 0] = k_new
    assert same_bits(pool[first:], k)


@triton.jit
def _doubling_kernel(ptr, value):
    tl.store(ptr, value + value)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU integers wrap silently: the interpreter is where we look")
def test_the_interpreter_does_raise_on_overflow():
    """Guards the fixture of all kernels: without it the sum would wrap and the test of large pools could miss it."""
    with pytest.raises(Exception, match="overflow"):
        _doubling_kernel[(1,)](torch.zeros(1, dtype=torch.int32), 2**31 - 1)


def test_a_context_has_parts_where_programs_are_few():
    longest = [0, 1, 63, 64, 127, 128, 255, 256, 10**6]
    assert [splits_for(1, each) for each in longest] == [1, 1, 1, 2, 2, 4, 4, 8, 8]
    assert [splits_for(each, 255) for each in (12, 32, 33, 64, 65, 128, 129)] == [4, 4, 2, 2, 1, 1, 1]


def test_a_long_context_has_parts_where_programs_are_not_many():
    assert [splits_for(192, each) for each in (514, 767, 768, 1023)] == [1, 1, 4, 4]
    assert [splits_for(each, 10**6) for each in (96, 97, 192, 193, 384, 385, 10**6)] == [8, 4, 4, 2, 2, 1, 1]


# -- an engine's ----------------------------------------------------------------------------------------------------

IN_ENGINES = {
    "reference": lambda kv, num_heads: reference.ReferenceAttention(kv),
    "triton": lambda kv, num_heads: paged_attention.TritonAttention(kv),
    "appending": lambda kv, num_heads: AppendingAttention(kv),
    **({"sparse": SparseAttention} if INTERPRETED else {}),
}


def cache_like(k, num_layers):
    shape = {"num_kv_heads": k.shape[1], "head_dim": k.shape[3], "block_size": k.shape[2], "num_blocks": k.shape[0]}
    return KVBlockManager(num_layers=num_layers, dtype=k.dtype, device=DEVICE, **shape)


@pytest.mark.parametrize("name", IN_ENGINES)
def test_an_engine_plans_once_for_layers_with_their_own_tables(name):
    """The sparse product multiplies what lies in its output by 0: a score that is NaN would stay."""
    case = Case([5, 9, 2], group=3)
    q, k, v, table, lens, longest, *new = case.args()
    kv = cache_like(k, 2)
    moved = torch.randperm(k.shape[0], generator=torch.Generator().manual_seed(2)).to(DEVICE)
    tables = torch.stack([table, torch.argsort(moved)[table.long()].int()])
    for layer, order in enumerate((torch.arange(k.shape[0], device=DEVICE), moved)):
        kv.k_layers[layer].copy_(k[order])
        kv.v_layers[layer].copy_(v[order])
    attention = IN_ENGINES[name](kv, q.shape[1])
    for _ in range(2):
        attention.plan(tables, lens, longest)
        for layer in range(2):
            out = attention.run(layer, q, *new)
            torch.testing.assert_close(out.cpu().double(), case.expected(), atol=case.bound(name), rtol=0)
            for b, length in enumerate(case.lengths if name == "appending" else []):
                place = tables[layer, b, length // BLOCK_SIZE], slice(None), length % BLOCK_SIZE
                assert torch.equal(kv.k_layers[layer][place], new[0][b])
                assert torch.equal(kv.v_layers[layer][place], new[1][b])
        attention.run(0, q * float("nan"), *new)


def test_the_device_decides():
    kv = cache_like(torch.zeros(1, 1, 4, 8), 1)
    assert type(paged_attention_for(kv, 1)) is (SparseAttention if INTERPRETED else paged_attention.TritonAttention)
    if INTERPRETED:
        kv.k_layers = tuple(k.bfloat16() for k in kv.k_layers)
        assert type(paged_attention_for(kv, 1)) is reference.ReferenceAttention
