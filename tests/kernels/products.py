"""Small matrix products: inputs, what they are in float64, and memory with guards around what kernels write."""

import math

import torch
import torch.nn.functional as F

from rosecourse.kernels.fused import Folded, FusedLinears, Stream
from tests.kernels.harness import DEVICE, EPS, INTERPRETED, ROUNDING

ARITHMETIC = 4e-6  # of sums in float32, relative to what is summed
GUARD = 256  # bytes before and after


def room(size: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Memory with others' before and after it. All bits of both are 1: that is NaN, or -1."""
    count = math.prod(size) * dtype.itemsize
    memory = torch.full((count + 2 * GUARD,), 255, dtype=torch.uint8, device=DEVICE)
    before, inside, after = memory.split([GUARD, count, GUARD])
    return inside.view(dtype).view(size), [before, after]


class Guards:
    """`Tensor.new_empty` with guards around what it gives."""

    def __init__(self, monkeypatch) -> None:
        self.guards: list[torch.Tensor] = []
        self.new_empty = torch.Tensor.new_empty
        monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *size, **options: self.new(like, size, **options))

    def new(self, like: torch.Tensor, size: tuple, dtype: torch.dtype | None = None, **options) -> torch.Tensor:
        if options:  # a call of the interpreter's
            return self.new_empty(like, *size, dtype=dtype, **options)
        made, guards = room(size[0] if isinstance(size[0], tuple) else size, dtype or like.dtype)
        self.guards += guards
        return made

    def check(self) -> None:
        assert self.guards
        assert all((guard == 255).all() for guard in self.guards)


def guarded(x: torch.Tensor) -> torch.Tensor:
    """A copy with NaN before and after it, which nothing may read."""
    return room(x.shape, x.dtype)[0].copy_(x)


def numbers(*size: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    """Normal ones, with guards around them."""
    generator = torch.Generator().manual_seed(seed + 1000 * sum(size))
    return guarded((torch.randn(*size, generator=generator) * scale + shift).to(DEVICE, dtype))


def weights(inputs: int, outputs: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Gain and bias of a norm [inputs], weight [inputs, outputs] and bias [outputs]."""
    gain, shift = (numbers(inputs, dtype=dtype, seed=seed + i, scale=0.3, shift=1 - i) for i in range(2))
    weight = numbers(inputs, outputs, dtype=dtype, seed=seed + 2, scale=inputs**-0.5)
    return gain, shift, weight, numbers(outputs, dtype=dtype, seed=seed + 3)


def stream_of(linears: FusedLinears, x: torch.Tensor) -> Stream:
    """Rows as a stream: through `embed`, which adds zeros to them."""
    rows, zero = torch.arange(len(x), device=x.device), torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return linears.embed(rows, zero, x, torch.zeros_like(x[:1]))


def stats_of(x: torch.Tensor, width: int) -> torch.Tensor:
    """What a stream keeps beside rows x, in float64: [2, tiles, B]."""
    tiles = x.double().split(width, dim=1)
    means = torch.stack([tile.mean(1) for tile in tiles])
    return torch.stack([means, torch.stack([((t - t.mean(1)[:, None]) ** 2).sum(1) for t in tiles])])


def normed(x: torch.Tensor, gain: torch.Tensor | None = None, shift: torch.Tensor | None = None) -> torch.Tensor:
    """The layer norm in float64."""
    gain, shift = (None if t is None else t.double() for t in (gain, shift))
    return F.layer_norm(x.double(), x.shape[1:], gain, shift, EPS)


def product(h: torch.Tensor, w: Folded) -> tuple[torch.Tensor, torch.Tensor]:
    """h @ w.T + b in float64, and the sums of the absolute numbers that are added up."""
    h, weight, bias = h.double(), w.weight.double().T, w.bias.double()
    return h @ weight + bias, h.abs() @ weight.abs() + bias.abs()


def is_close(out: torch.Tensor, expected: torch.Tensor, size: torch.Tensor | float) -> None:
    """out is expected, rounded. size: the sums of the absolute numbers that were added up."""
    cut_off = INTERPRETED and out.dtype == torch.bfloat16  # where the interpreter should round
    bound = ROUNDING[out.dtype] * (1 + cut_off) * expected.abs() + ARITHMETIC * size
    if out.dtype == torch.float16:
        bound = bound + 2**-25  # subnormal numbers
    wrong = ~((out.double() - expected).abs() <= bound)
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} are wrong, such as {wrong.nonzero()[0].tolist()}"
