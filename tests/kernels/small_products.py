"""Small matrix products: inputs, what they are in float64, and memory with guards around what kernels write."""

import math

import torch
import torch.nn.functional as F

from rosecourse.kernels.fused import Folded, FusedLinears, Stream

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Half the distance of two neighbouring numbers, relative; the interpreter cuts off where it should round to bfloat16.
ROUNDING = {
    torch.float32: 2**-24,
    torch.float16: 2**-11,
    torch.bfloat16: 2**-8 if DEVICE.type == "cuda" else 2**-7,
}
ARITHMETIC = 4e-6  # of sums in float32, relative to what is summed
EPS = 1e-5
GUARD = 64  # numbers before and after


class Guards:
    """`Tensor.new_empty` with NaN in what it gives and around it."""

    def __init__(self, monkeypatch) -> None:
        self.made: list[tuple[torch.Tensor, int]] = []
        self.new_empty = torch.Tensor.new_empty
        monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *size, **options: self.new(like, size, **options))

    def new(self, like: torch.Tensor, size: tuple, dtype: torch.dtype | None = None, **options) -> torch.Tensor:
        if options:  # a call of the interpreter's
            return self.new_empty(like, *size, dtype=dtype, **options)
        size = size[0] if isinstance(size[0], tuple) else size
        dtype = dtype or like.dtype
        numel = math.prod(size)
        odd = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
        memory = torch.full((numel + 2 * GUARD,), odd, dtype=dtype, device=like.device)
        self.made.append((memory, numel))
        return memory[GUARD : GUARD + numel].view(size)

    def check(self) -> None:
        assert self.made
        for memory, numel in self.made:
            for guard in (memory[:GUARD], memory[GUARD + numel :]):
                assert (guard.isnan() if memory.is_floating_point() else guard == torch.iinfo(memory.dtype).min).all()


def guarded(x: torch.Tensor) -> torch.Tensor:
    """A copy with NaN before and after it, which nothing may read."""
    memory = torch.full((x.numel() + 2 * GUARD,), float("nan"), dtype=x.dtype, device=x.device)
    memory[GUARD : GUARD + x.numel()] = x.reshape(-1)
    return memory[GUARD : GUARD + x.numel()].view(x.shape)


def numbers(*size: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    """Normal ones, with guards around them."""
    generator = torch.Generator().manual_seed(seed + 1000 * sum(size))
    return guarded((torch.randn(*size, generator=generator) * scale + shift).to(DEVICE, dtype))


def weights(inputs: int, outputs: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Gain and bias of a norm [inputs], weight [inputs, outputs] and bias [outputs]."""
    gain, shift = (numbers(inputs, dtype=dtype, seed=seed + i, scale=0.3, shift=1 - i) for i in range(2))
    weight = numbers(inputs, outputs, dtype=dtype, seed=seed + 2, scale=inputs**-0.5)
    return gain, shift, weight, numbers(outputs, dtype=dtype, seed=seed + 3)


def with_guards(w: Folded) -> Folded:
    return Folded(*map(guarded, w[:3]), *w[3:])


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


def is_close(out: torch.Tensor, expected: torch.Tensor, size: torch.Tensor | float) -> None:
    """out is expected, rounded. size: the sums of the absolute numbers that were added up."""
    bound = ROUNDING[out.dtype] * expected.abs() + ARITHMETIC * size
    if out.dtype == torch.float16:
        bound = bound + 2**-25  # subnormal numbers
    wrong = ~((out.double() - expected).abs() <= bound)
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} are wrong, such as {wrong.nonzero()[0].tolist()}"
