"""Attention and the append kernels on extreme numbers, in every dtype, with NaN wherever nothing has been written.

On a CPU the Triton kernels go through the interpreter; on a GPU they run natively, and `-m gpu` takes them too.
"""

from types import SimpleNamespace

import pytest
import torch

from rosecourse.kernels import (
    SparseAttention,
    appending_attention,
    kv_append_triton,
    kv_append_triton_full_batch,
    paged_attention,
    reference,
)
from tests.support.oracles import attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.grid
H, D, BLOCK_SIZE = 2, 16, 4  # the scale, 1 / 4, is exact

# Half the distance of two neighbouring numbers, relative: what rounding the result may cost.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
# Scores, weights and sums are float32 in every implementation, whatever the cache holds. The scores below are exact, or
# at most 8 and then wrong by a few of the 2**-24 that each of D products may cost; exp and a sum of T weights add T.
ARITHMETIC = 2e-6


def by_sparse(q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
    """`SparseAttention` with the arguments of the others."""
    sparse = SparseAttention(SimpleNamespace(k_layers=[k_layer], v_layers=[v_layer]), q.shape[1])
    sparse.plan(block_table[None], context_lens, max_context_len)
    return sparse.run(0, q, k_new, v_new)


def in_parts(q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
    """Contexts that may be long are shared by 8 programs each, and these by those that get a tile."""
    assert appending_attention.splits_for(len(q) * H, 1024) == 8
    return appending_attention.attend_and_append(q, k_layer, v_layer, block_table, context_lens, 1024, k_new, v_new)


IMPLEMENTATIONS = {
    "reference": reference.paged_attention_decode,
    "sparse": by_sparse,
    "triton": paged_attention.paged_attention_decode,
    "appending": appending_attention.attend_and_append,
    "appending in parts": in_parts,
}
WEIGHTS_ARE_ROUNDED = ["appending", "appending in parts"]  # to the dtype, for the tensor cores
IN_DTYPES = [(name, dtype) for name in IMPLEMENTATIONS for dtype in ROUNDING if name != "sparse"]
if DEVICE.type == "cpu":
    IN_DTYPES.append(("sparse", torch.float32))  # which is all that torch's sparse operations know
in_dtypes = pytest.mark.parametrize(("name", "dtype"), IN_DTYPES, ids=lambda x: str(x).removeprefix("torch."))


def smallest(dtype: torch.dtype) -> float:
    """The smallest number above zero, a subnormal one."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


class Case:
    """Sessions of given lengths, cached tokens and the new one: q [B, H, D], and of each session k, v [T, H, D]."""

    def __init__(self, lengths: list[int], dtype: torch.dtype, seed: int = 0) -> None:
        self.lengths, self.dtype = lengths, dtype
        self.generator = torch.Generator().manual_seed(seed)
        self.q = self.normal(len(lengths))
        self.k = [self.normal(length + 1) for length in lengths]
        self.v = [self.normal(length + 1) for length in lengths]

    def normal(self, count: int) -> torch.Tensor:
        return torch.randn(count, H, D, generator=self.generator)

    def args(self) -> tuple:
        """What an implementation takes. NaN fills free blocks, unused slots, and the block that pads the tables."""
        widest = max(self.lengths) // BLOCK_SIZE + 1  # with the slot of the new token
        num_blocks = len(self.lengths) * widest + 2
        caches = torch.full((2, num_blocks, H, BLOCK_SIZE, D), float("nan"))
        order = torch.randperm(num_blocks, generator=self.generator).tolist()
        table = torch.full((len(self.lengths), widest), order.pop(), dtype=torch.int32)
        for b, length in enumerate(self.lengths):
            for p in range(length):
                if p % BLOCK_SIZE == 0:
                    table[b, p // BLOCK_SIZE] = order.pop()
                where = table[b, p // BLOCK_SIZE], slice(None), p % BLOCK_SIZE
                caches[0][where], caches[1][where] = self.k[b][p], self.v[b][p]
            if length % BLOCK_SIZE == 0:  # the new token begins a block
                table[b, length // BLOCK_SIZE] = order.pop()
        k_new, v_new = (torch.stack([rows[-1] for rows in x]) for x in (self.k, self.v))
        q, k_layer, v_layer, k_new, v_new = (
            x.to(DEVICE, self.dtype).contiguous() for x in (self.q, *caches, k_new, v_new)
        )
        context_lens = torch.tensor(self.lengths, device=DEVICE)
        return q, k_layer, v_layer, table.to(DEVICE), context_lens, max(self.lengths), k_new, v_new

    def expected(self) -> torch.Tensor:
        """In float64, from the numbers as the dtype holds them."""
        stored = [[x.to(self.dtype) for x in rows] for rows in (self.q, self.k, self.v)]
        return torch.stack([attention(q, k, v) for q, k, v in zip(*stored, strict=True)])

    def check(self, name: str) -> None:
        out = IMPLEMENTATIONS[name](*self.args())
        assert out.dtype == self.dtype
        largest = max(float(v.to(self.dtype).abs().max()) for v in self.v)
        # Below the normal numbers rounding is absolute: half of the smallest number, for the result in its dtype and
        # for each of the T products in float32.
        below = smallest(self.dtype) / 2 + (max(self.lengths) + 1) * smallest(torch.float32) / 2
        roundings = 2 if name in WEIGHTS_ARE_ROUNDED else 1
        bound = largest * (roundings * ROUNDING[self.dtype] + ARITHMETIC) + below
        torch.testing.assert_close(out.cpu().double(), self.expected(), atol=bound, rtol=0)


LENGTHS = [1, BLOCK_SIZE - 1, BLOCK_SIZE, 3 * BLOCK_SIZE, 70]  # 70: two tiles of the Triton kernel


@in_dtypes
def test_one_token_and_a_full_table(name, dtype):
    for lengths in ([1], [1, 1], [BLOCK_SIZE], [4 * BLOCK_SIZE, 1], [1, 4 * BLOCK_SIZE]):
        Case(lengths, dtype).check(name)


@in_dtypes
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_beyond_what_float16_holds(name, dtype, sign):
    """Up to 2**16, and among the highest some that differ by 1 or 2: all exact. float16 ends at 65504."""
    case = Case(LENGTHS, dtype)
    case.q.zero_()[..., :2] = torch.tensor([1024.0 * sign, 4.0])
    for k in case.k:
        k.zero_()[..., 0] = torch.randint(-2, 3, k.shape[:2], generator=case.generator) * 128.0
        k[..., 1] = torch.randint(0, 3, k.shape[:2], generator=case.generator)
    case.check(name)


@in_dtypes
def test_equal_scores_give_the_mean(name, dtype):
    for q in (0.0, 3.0):
        case = Case(LENGTHS, dtype)
        case.q.fill_(q)
        for k in case.k:
            k.fill_(-0.5)
        case.check(name)


@in_dtypes
@pytest.mark.parametrize("place", ["first", "last cached", "new"])
def test_one_score_above_all_gives_its_value(name, dtype, place):
    case = Case(LENGTHS, dtype)
    case.q.fill_(8.0)
    for k in case.k:
        k.fill_(-8.0)
        k[{"first": 0, "last cached": -2, "new": -1}[place]] = 8.0
    case.check(name)


@in_dtypes
def test_values_as_large_as_the_dtype_holds(name, dtype):
    """Their mean is no larger; a sum of them would be, in the dtype itself."""
    case = Case(LENGTHS, dtype)
    for v in case.v:
        v.copy_(torch.sign(v) * (60000.0 if dtype == torch.float16 else 2.0**120))
    case.check(name)


@in_dtypes
def test_subnormal_numbers(name, dtype):
    if name in ("triton", *WEIGHTS_ARE_ROUNDED) and (dtype, DEVICE.type) == (torch.bfloat16, "cpu"):
        pytest.skip("Triton's interpreter converts subnormal bfloat16 wrongly: a GPU does it right")
    case = Case(LENGTHS, dtype)
    for rows in (case.k, case.v):
        for x in rows:
            x.copy_(torch.randint(-8, 9, x.shape, generator=case.generator) * smallest(dtype))
    case.check(name)
    for v in case.v:  # to take them for zero would be seen
        v.fill_(256 * smallest(dtype))
    case.check(name)


@in_dtypes
def test_negative_zeros(name, dtype):
    case = Case(LENGTHS, dtype)
    case.q.fill_(-0.0)
    for k in case.k:
        k.fill_(-0.0)
    case.check(name)
    for v in case.v:
        v.fill_(-0.0)
    assert (IMPLEMENTATIONS[name](*case.args()) == 0).all()


@in_dtypes
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, inside the interpreter
@pytest.mark.parametrize("bad", ["q", "k", "v", "k_new", "v_new"])
def test_neighbours_of_a_session_with_nan_are_equal_to_the_bit(name, dtype, bad):
    lengths, sick = [5, 70, 1, 7], 1
    clean = Case(lengths, dtype)
    before = IMPLEMENTATIONS[name](*clean.args())
    case = Case(lengths, dtype)
    if bad == "q":
        case.q[sick] = float("nan")
    else:
        rows = case.k if bad.startswith("k") else case.v
        rows[sick][-1 if bad.endswith("new") else 3] = float("nan")
    after = IMPLEMENTATIONS[name](*case.args())
    assert after[sick].isnan().all()
    others = [b for b in range(len(lengths)) if b != sick]
    assert before[others].isfinite().all()
    assert torch.equal(after[others], before[others])


# -- the append kernels -------------------------------------------------------------------------------------------

BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def any_bits(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of every kind: NaN of all sorts, infinities, subnormal ones, both zeros."""
    limits = torch.iinfo(BITS[dtype])
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(limits.min, limits.max + 1, shape, dtype=BITS[dtype], generator=generator)
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), torch.finfo(dtype).smallest_normal / 2]
    bits.view(-1)[: len(special)] = torch.tensor(special, dtype=dtype).view(BITS[dtype])
    return bits.view(dtype).to(DEVICE)


@pytest.mark.parametrize("kernel", ["indices", "one position"])
@pytest.mark.parametrize("dtype", BITS, ids=lambda x: str(x).removeprefix("torch."))
def test_the_append_kernels_copy_every_bit_and_touch_nothing_else(dtype, kernel):
    B, num_blocks = 6, 8
    key, value = any_bits(B, 3, H, D, dtype=dtype, seed=1).unbind(1)[1:]  # views of a fused projection
    caches = [any_bits(num_blocks, H, BLOCK_SIZE, D, dtype=dtype, seed=seed) for seed in (2, 3)]
    expected = [cache.view(BITS[dtype]).tolist() for cache in caches]
    blocks, positions, order = [7, 0, 3, 5, 1, 2], [0, 3, 2, 0, 1, 3], [4, 0, 5, 1, 3, 2]
    if kernel == "one position":
        positions, order = [2] * B, list(range(B))
    for i, b in enumerate(order):
        for cache, new in zip(expected, (key, value), strict=True):
            for head in range(H):
                cache[blocks[i]][head][positions[i]] = new[b, head].contiguous().view(BITS[dtype]).tolist()
    on_device = [torch.tensor(x, device=DEVICE) for x in (order, blocks, positions)]
    if kernel == "indices":
        kv_append_triton(*caches, key, value, *on_device)
    else:
        kv_append_triton_full_batch(*caches, key, value, on_device[1], positions[0])
    assert [cache.view(BITS[dtype]).tolist() for cache in caches] == expected
