"""Attention and the append kernels on extreme numbers, in every dtype, with NaN wherever nothing has been written.

On a CPU the Triton kernels go through the interpreter; on a GPU they run natively, and `-m gpu` takes them too.
"""

import pytest
import torch

from rosecourse.kernels import appending_attention
from tests.kernels import attention_cases
from tests.kernels.attention_cases import DEVICE, paged, with_room
from tests.support.oracles import attention

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
H, D, BLOCK_SIZE = 2, 16, 4  # the scale, 1 / 4, is exact

# Half the distance of two neighbouring numbers, relative: what rounding the result may cost.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
# Scores, weights and sums are float32 in every implementation, whatever the cache holds. The scores below are exact, or
# at most 8 and then wrong by a few of the 2**-24 that each of D products may cost; exp and a sum of T weights add T.
ARITHMETIC = 2e-6


def in_parts(q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
    """Contexts that may be long are shared by 8 programs each, and these by those that get a tile."""
    assert appending_attention.splits_for(len(q) * H, 1024) == 8
    return appending_attention.attend_and_append(q, k_layer, v_layer, block_table, context_lens, 1024, k_new, v_new)


IMPLEMENTATIONS = attention_cases.IMPLEMENTATIONS | {"appending in parts": in_parts}
WEIGHTS_ARE_ROUNDED = ["appending", "appending in parts"]  # to the dtype, for the tensor cores
NAMES = [*IMPLEMENTATIONS] if DEVICE.type == "cpu" else [name for name in IMPLEMENTATIONS if name != "sparse"]


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
        """What an implementation takes."""
        q, k_new, v_new = (
            x.to(DEVICE, self.dtype) for x in (self.q, *(torch.stack([r[-1] for r in x]) for x in (self.k, self.v)))
        )
        dense = [torch.stack([k[:-1], v[:-1]]) for k, v in zip(self.k, self.v, strict=True)]
        return with_room(paged(q, k_new, v_new, dense, BLOCK_SIZE, self.generator))

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


def large_scores(sign):
    """Up to 2**16, and among the highest some that differ by 1 or 2: all exact. float16 ends at 65504."""

    def change(case):
        case.q.zero_()[..., :2] = torch.tensor([1024.0 * sign, 4.0])
        for k in case.k:
            k.zero_()[..., 0] = torch.randint(-2, 3, k.shape[:2], generator=case.generator) * 128.0
            k[..., 1] = torch.randint(0, 3, k.shape[:2], generator=case.generator)

    return change


def equal_scores(case):
    case.q.fill_(3.0)
    for k in case.k:
        k.fill_(-0.5)


def one_score_above_all(place):
    def change(case):
        case.q.fill_(8.0)
        for k in case.k:
            k.fill_(-8.0)
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


def negative_zeros(case):
    for x in (case.q, *case.k):
        x.fill_(-0.0)


KINDS = {
    "normal numbers": lambda case: None,
    "large scores": large_scores(1),
    "large scores below zero": large_scores(-1),
    "equal scores": equal_scores,
    "the first above all": one_score_above_all(0),
    "the last cached one above all": one_score_above_all(-2),
    "the new one above all": one_score_above_all(-1),
    "large values": large_values,
    "subnormal numbers": subnormal_numbers,
    "negative zeros": negative_zeros,
}
# Each kind with each implementation, and each dtype with either.
GRID = [
    (name, torch.float32 if name == "sparse" else list(ROUNDING)[(i + j) % 3], kind)
    for i, name in enumerate(NAMES)
    for j, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("name", "dtype", "kind"), GRID)
def test_numbers_of_every_kind(name, dtype, kind):
    """Lengths: one token, a table that ends with a block, two tiles of the Triton kernel."""
    if kind == "subnormal numbers" and name not in ("reference", "sparse") and dtype == torch.bfloat16:
        dtype = torch.float16  # the interpreter converts subnormal bfloat16 wrongly, a GPU does it right
    case = Case([1, BLOCK_SIZE - 1, 3 * BLOCK_SIZE, 70], dtype)
    KINDS[kind](case)
    case.check(name)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, inside the interpreter
@pytest.mark.parametrize("bad", ["q", "k", "v"])
@pytest.mark.parametrize("name", NAMES)
def test_neighbours_of_a_session_with_nan_are_equal_to_the_bit(name, bad):
    lengths, sick, others = [5, 70, 1, 7], 1, [0, 2, 3]
    before = IMPLEMENTATIONS[name](*Case(lengths, torch.float32).args())
    case = Case(lengths, torch.float32)
    getattr(case, bad)[sick][0] = float("nan")
    after = IMPLEMENTATIONS[name](*case.args())
    assert after[sick].isnan().any()
    assert before[others].isfinite().all()
    assert torch.equal(after[others], before[others])
