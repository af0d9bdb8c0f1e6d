"""The kernel that attends and appends: what it writes, and how it puts the parts of a split context together.

What it has in common with the other implementations is tested with them (`IMPLEMENTATIONS`). On a CPU it goes through
the interpreter; on a GPU it runs natively, and `-m gpu` takes it, too.
"""

import pytest
import torch

from rosecourse.kernels.appending_attention import attend_and_append, form_of, splits_for
from tests.kernels.attention_cases import (
    DEVICE,
    INTERPRETED,
    TOLERANCE,
    a_case,
    check,
    expected,
    let_overflow_raise,
    with_room,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:All-NaN slice"),  # numpy's, inside the interpreter
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered"),
    *([] if INTERPRETED else [pytest.mark.gpu]),
]
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
in_dtypes = pytest.mark.parametrize("dtype", BITS, ids=lambda dtype: str(dtype).removeprefix("torch."))
BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64]


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    let_overflow_raise(monkeypatch)


def a_case_with_room(*args, **kinds):
    given, dense = a_case(*args, **kinds)
    return with_room(given), dense


def around(block_size):
    """Context lengths at which a slot is the first, the last or one inside of a block, 0 among them."""
    return sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size - 1, 2 * block_size})


def bits_of(cache):
    return cache.contiguous().view(BITS[cache.dtype]).tolist()


def any_bits(x, seed):
    """Numbers of every kind in the place of x, NaN among them; no two are alike, or hardly any."""
    limits, generator = torch.iinfo(BITS[x.dtype]), torch.Generator().manual_seed(seed)
    bits = torch.randint(limits.min, limits.max + 1, x.shape, dtype=BITS[x.dtype], generator=generator)
    return bits.view(x.dtype).to(x.device)


def appends(attend, block_size=4, dtype=torch.float32, H=3, D=16, group=2, longest=None):
    """Each head of each session's K and V is in its slot, to the bit, and every other bit is as it was."""
    lens = around(block_size)
    (q, k_layer, v_layer, table, context_lens, _, k_new, v_new), _ = a_case_with_room(
        lens, H=H, D=D, block_size=block_size, dtype=dtype, group=group
    )
    caches = [any_bits(cache, seed) for seed, cache in enumerate((k_layer, v_layer))]
    new = [any_bits(x, seed) for seed, x in enumerate((k_new, v_new), 2)]
    after = [bits_of(cache) for cache in caches]
    for cache, x in zip(after, new, strict=True):
        for b, length in enumerate(lens):
            for head in range(H):
                cache[int(table[b, length // block_size])][head][length % block_size] = bits_of(x[b, head])
    attend(q, *caches, table, context_lens, longest or max(lens), *new)
    assert bits_of(caches[0]) == after[0], "K is not what it should be"
    assert bits_of(caches[1]) == after[1], "V is not what it should be"


@pytest.mark.parametrize(
    ("block_size", "dtype"), [*zip(BLOCK_SIZES, 3 * list(BITS), strict=False), (16, torch.float32)]
)
def test_k_and_v_get_to_their_slots_and_nothing_else_changes(block_size, dtype):
    appends(attend_and_append, block_size, dtype)


@pytest.mark.parametrize(
    ("H", "D", "group", "longest"), [(1, 12, 1, 1024), (1, 20, 17, 256), (2, 80, 3, 512), (2, 80, 3, 1024)]
)
def test_one_of_the_programs_that_share_a_context_appends(H, D, group, longest):
    appends(attend_and_append, 16, H=H, D=D, group=group, longest=longest)


@pytest.mark.parametrize(
    ("group", "D", "block_size", "fused", "dtype"),
    [
        (8, 128, 16, True, torch.bfloat16),
        (17, 20, 32, False, torch.float32),
        (33, 5, 16, False, torch.float16),
        (1, 5, 24, True, torch.float16),  # an engine takes no such block, but the kernel asks nobody
    ],
)
def test_groups_heads_and_blocks_of_any_size(group, D, block_size, fused, dtype):
    check(
        "appending",
        *a_case_with_room([0, 1, 15, 40], D=D, block_size=block_size, group=group, dtype=dtype, fused=fused),
    )


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block_size", "width"), [(16, 1024), (16, 3000), (64, 1025)])
def test_rows_that_are_too_long_to_be_kept_are_looked_up(block_size, width):
    """What lies behind a session's blocks, and behind the row, is no block at all: nobody may go there."""
    args, dense = a_case_with_room([0, 31, 64, 130], H=1, block_size=block_size)
    table = torch.full((len(dense), width + 5), 2**30, dtype=torch.int32, device=DEVICE)
    table[:, : args[3].shape[1]] = args[3]
    for b, kv in enumerate(dense):
        table[b, kv.shape[1] // block_size + 1 :] = 2**30
    args = (*args[:3], table[:, :width], *args[4:])  # rows stand farther apart than they are long
    check("appending", args, dense)
    form = form_of(((1, 8), args[1].shape, args[2].shape, (1, 8), (1, 8)), width, 1, True)
    assert (form.ROW > 0) is (width <= 1024)


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 32, 40, 48, 64, 96, 128])
@pytest.mark.parametrize("max_blocks", [1, 5, 1024, 1025])
def test_a_tile_looked_up_in_the_row_lies_in_one_block(block_size, max_blocks):
    layer = (9, 2, block_size, 16)
    form = form_of(((6, 16), layer, layer, (2, 16), (2, 16)), max_blocks, 1, False)
    assert form.TILE >= 16
    assert form.TILE & (form.TILE - 1) == 0
    if form.ROW:
        assert block_size % form.TILE == 0
        assert max_blocks <= form.ROW
        assert form.ROW & (form.ROW - 1) == 0


# -- a context in parts -----------------------------------------------------------------------------------------------


def test_how_many_parts():
    assert [splits_for(1, longest) for longest in (0, 1, 255, 256, 511, 512, 1023, 1024, 10**6)] == [
        *[1, 1, 1],
        *[2, 2],
        *[4, 4],
        *[8, 8],
    ]
    assert [splits_for(programs, 10**6) for programs in (12, 16, 17, 32, 33, 64, 65, 128, 129, 10**6)] == [
        *[8, 8],
        *[4, 4],
        *[2, 2],
        *[1, 1, 1, 1],
    ]


LONGEST_FOR = {1: 1, 2: 256, 4: 512, 8: 1024}  # max_context_len, for few programs


def in_parts(attend, splits, case):
    """The sums of a case whose contexts are in so many parts."""
    (*args, _, k_new, v_new), dense = case
    args = [*args, LONGEST_FOR[splits], k_new, v_new]
    assert splits_for(len(dense) * k_new.shape[1], LONGEST_FOR[splits]) == splits
    return attend(*args), expected(args, dense)


def is_close(out, right):
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.cpu().double(), right, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("splits", "group", "D", "block_size", "dtype"),
    [
        (splits, *size, dtype)
        for size, dtype in zip([(1, 64, 64), (17, 20, 16), (3, 80, 4)], BITS, strict=True)
        for splits in (1, 2, 8)
    ],
)
def test_parts_are_put_together_right(splits, group, D, block_size, dtype):
    """Among the lengths are those of fewer tiles than parts, of one tile more, and none: some parts are empty."""
    lens = [0, 1, 31, 32, 33, 65, 64 * splits + 1]
    is_close(*in_parts(attend_and_append, splits, a_case_with_room(lens, 1, D, block_size, dtype, group=group)))


@pytest.mark.parametrize(("splits", "size"), [(1, 2.0**60), (2, 1e4), (4, 1e-3), (8, 2.0**60)])
def test_scores_of_any_size(splits, size):
    """2**120 is next to the largest float32; an empty part must not outweigh a score far below zero.

    A power of two, so that equal scores are equal in whatever order they are summed.
    """
    (q, k, v, *rest, k_new, v_new), dense = a_case_with_room([3, 40, 130], H=1, D=4, block_size=16, group=3)
    q, k, k_new = torch.full_like(q, -size), k * 0 + size, torch.full_like(k_new, size)
    dense = [torch.stack([kv[0] * 0 + size, kv[1]]) for kv in dense]
    is_close(*in_parts(attend_and_append, splits, ((q, k, v, *rest, k_new, v_new), dense)))


@pytest.mark.parametrize("max_blocks", [2, 1025])
def test_the_append_into_a_pool_of_more_than_2_to_the_31(max_blocks):
    """Its last blocks lie past what an int32 offset reaches. Memory that is not used is not touched."""
    (q, k, _, table, lens, longest, k_new, _), dense = a_case_with_room(
        [9, 64], D=32, block_size=64, dtype=torch.float16
    )
    num_blocks = 2**31 // (2 * 64 * 32) + k.shape[0]
    pool = torch.empty((num_blocks, *k.shape[1:]), dtype=torch.float16, device=DEVICE)
    first = num_blocks - k.shape[0]
    pool[first:] = k
    far = torch.zeros(2, max_blocks, dtype=torch.int32, device=DEVICE)
    far[:, :2] = table[:, :2] + first
    check("appending", (q, pool, pool, far, lens, longest, k_new, k_new), [kv[[0, 0]] for kv in dense])
    k[table[0, 0], :, 9], k[table[1, 1], :, 0] = k_new
    assert bits_of(pool[first:]) == bits_of(k)
