"""What the tests of all kernels share: the device, grids of cases, numbers to the bit, and paged K and V.

On a CPU kernels go through Triton's interpreter; on a GPU they run natively, and `-m gpu` takes them too.
"""

import itertools
from collections.abc import Callable

import pytest
import torch

INTERPRETED = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
MARKS = [] if INTERPRETED else [pytest.mark.gpu]
EPS = 1e-5
# Half the distance of two neighbouring numbers, relative: what rounding a result may cost.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def pairwise(*, only: Callable[..., bool] = lambda *case: True, **axes: list) -> pytest.MarkDecorator:
    """Parametrises a test: each pair of values of two axes that may stand together is in at least one case."""
    values = list(axes.values())
    places = itertools.product(*(range(len(each)) for each in values))
    cases = {place: [each[n] for each, n in zip(values, place, strict=True)] for place in places}
    pairs = {place: set(itertools.combinations(enumerate(place), 2)) for place in cases if only(*cases[place])}
    left, chosen = set().union(*pairs.values()), []
    while left:
        best = max(pairs, key=lambda place: len(pairs[place] & left))
        chosen.append(cases[best])
        left -= pairs[best]
    return pytest.mark.parametrize(tuple(axes), chosen, ids=lambda value: str(value).removeprefix("torch."))


def any_bits(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of every kind: NaN of all sorts, infinities, subnormal ones, both zeros."""
    limits, generator = torch.iinfo(BITS[dtype]), torch.Generator().manual_seed(seed)
    bits = torch.randint(limits.min, limits.max + 1, shape, dtype=BITS[dtype], generator=generator)
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), torch.finfo(dtype).smallest_normal / 2]
    bits.view(-1)[: len(special)] = torch.tensor(special, dtype=dtype).view(BITS[dtype])
    return bits.view(dtype).to(DEVICE)


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.contiguous().view(BITS[x.dtype]), y.contiguous().view(BITS[y.dtype]))
