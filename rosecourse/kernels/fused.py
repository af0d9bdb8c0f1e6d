"""The five operations of a transformer layer around small matrix products, each one Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .compile import compiled
from .ends import choose_of_tiles_kernel, embed_kernel, head_kernel
from .launch import Launch
from .linear import linear_kernel, linear_stream_kernel
from .tiles import MOST_ROWS, Tiles, limits_of, tiles_for

COUNTERS = 4096  # tiles of a product that come in parts
MULTIPLE = 256  # rows of logits begin at multiples of so many numbers


@dataclass
class Stream:
    """A residual stream of B rows."""

    x: Tensor  # [B, C]
    stats: Tensor  # float32 [2, tiles, B], MOST_ROWS apart: of a tile its mean, the sum of squared distances from it
    width: int  # of a tile; the last may be shorter


class Folded(NamedTuple):
    """A norm and a linear map as one: norm(x) @ w.T + b = (x @ weight.T - mean(x) * colsum) / std(x) + bias.

    For an RMS norm x @ weight.T / rms(x) + bias.
    """

    weight: Tensor  # [out, in], in the dtype of the model
    bias: Tensor  # float32 [out]
    colsum: Tensor  # float32 [out]: of the weights as they are rounded, so that the mean of x cancels
    rms: bool = False  # whether the norm is an RMS norm
    gated: bool = False  # whether rows of the weight come in pairs: of a gate, and of what SiLU of it is multiplied by


class Head(NamedTuple):
    """What the end of a step has made of B rows."""

    logits: Tensor  # [B, V], rows farther apart than they are long
    best: Tensor  # float32 [B, tiles]: the largest logit of each tile of the vocabulary; inf for NaN
    best_ids: Tensor  # int32 [B, tiles]: its token, the first of equals


def folded(
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rms: bool = False,
    gated: bool = False,
) -> Folded:
    """Fold the gain and the bias of a norm [in] into the linear map after it: weight [in, out], bias [out].

    None is a gain of 1, or a bias of 0. gated: the first half of the outputs are gates; each comes beside what it
    multiplies.
    """
    wide = torch.float64 if weight.dtype == torch.float32 else torch.float32
    product = weight.to(wide)
    total = torch.zeros_like(product[0]) if bias is None else bias.to(wide)
    if norm_bias is not None:
        total = total + norm_bias.to(wide) @ product
    if norm_weight is not None:
        product = norm_weight.to(wide)[:, None] * product
    rounded = product.T.to(weight.dtype)
    if gated:
        rounded, total = (part.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1) for part in (rounded, total))
    rounded = rounded.contiguous()
    return Folded(rounded, total.float(), rounded.sum(dim=1, dtype=wide).float(), rms, gated)


class FusedLinears:
    """The operations for one device and dtype; in a CUDA graph, too. One stream of work at a time may use them.

    A product that has too few tiles for the device is computed in parts. Who comes last adds them up in their order, so
    the same call gives the same bits.
    """

    most_rows = MOST_ROWS

    def __init__(self, device: torch.device, dtype: torch.dtype, pdl: bool = False) -> None:
        """pdl: whether a kernel may start before the one before it has ended (compute capability 9 and up)."""
        self.device, self.pdl = device, pdl
        self.shared_memory, self.processors = limits_of(device)
        self.float32 = dtype == torch.bfloat16 and device.type == "cpu"  # interpreted
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)  # each kernel leaves them at 0

    def fits(self, rows: int, weight: Tensor) -> bool:
        """Whether the device has the shared memory for a product with a weight [out, in]."""
        return self._tiles(rows, weight) is not None

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor | None) -> Stream:
        """wte[token_ids] + wpe[positions]: token_ids, positions int [B]; wte [V, C]; wpe [context, C] or None."""
        B, C = len(token_ids), wte.shape[1]
        x, stats = wte.new_empty(B, C), _room_for_stats(wte, 1, B)
        tensors = (token_ids, positions, wte, wte if wpe is None else wpe, x, stats)
        constants = (C, triton.next_power_of_2(C), wpe is not None)
        self._launch(embed_kernel, tensors, (B,), constants)((B, 1, 1), *tensors, B)
        return Stream(x, stats, C)

    def norm_linear(self, x: Stream, w: Folded, eps: float, gelu: bool = False) -> Tensor:
        """norm(x) @ w.T + b, with GELU (by tanh) if wanted, or gated: [B, out] in the dtype of x."""
        out = x.x.new_empty(len(x.x), len(w.weight) // (1 + w.gated))
        self._linear(x.x, w, out, eps=eps, stream=x, gelu=gelu)
        return out

    def linear_add(self, h: Tensor, w: Folded, x: Stream) -> Stream:
        """x + h @ w.T + b, summed in float32 and rounded once, in place of x; h [B, in]."""
        h = h.contiguous()
        if h.data_ptr() % 16:  # the kernel reads 16 bytes at a time
            h = h.clone()
        return Stream(x.x, *self._linear(h, w, x.x, add=True))

    def logits(self, x: Stream, w: Folded, eps: float) -> Head:
        """norm(x) @ w.T + b, where w has the vocabulary's V rows."""
        B, (V, C) = len(x.x), w.weight.shape
        tiles = self._tiles(B, w.weight)
        count = triton.cdiv(V, tiles.BN)
        stride = triton.cdiv(V, MULTIPLE) * MULTIPLE
        logits = x.x.new_empty(B, stride)
        best, best_ids = (x.x.new_empty(B, count, dtype=dtype) for dtype in (torch.float32, torch.int32))
        tensors = (x.x, *w[:3], x.stats, logits, best, best_ids)
        shape = (V, stride, C, x.width, _powers(C, x.width), w.rms, self.float32)
        constants = (*shape, tiles.BM, tiles.BN, tiles.BK, tiles.stages)
        launch = self._launch(head_kernel, tensors, (B, eps), constants, tiles.warps)
        launch((triton.cdiv(B, tiles.BM), self._programs(tiles, B, w.weight), 1), *tensors, B, eps)
        return Head(logits[:, :V], best, best_ids)

    def choose(self, head: Head, live: Tensor, token_ids: Tensor, context_lens: Tensor) -> Tensor:
        """`kernels.choose` by the best of each tile, with its arguments."""
        B, count = head.best.shape
        tokens = torch.empty_like(token_ids)
        tensors = (head.best, head.best_ids, live, tokens, token_ids, context_lens)
        constants = (count, triton.next_power_of_2(count), head.logits.shape[1])
        self._launch(choose_of_tiles_kernel, tensors, (), constants)((B, 1, 1), *tensors)
        return tokens

    def _linear(
        self,
        x: Tensor,
        w: Folded,
        out: Tensor,
        eps: float = 0.0,
        stream: Stream | None = None,
        gelu: bool = False,
        add: bool = False,
    ) -> tuple[Tensor, int]:
        """Launch the kernel; returns what is known of the rows of out then, if add, and of how wide tiles."""
        B, (N, K) = len(x), w.weight.shape
        tiles = self._tiles(B, w.weight)
        row_tiles, column_tiles = triton.cdiv(B, tiles.BM), triton.cdiv(N, tiles.BN)
        programs = self._programs(tiles, B, w.weight)
        if stream is not None and tiles.splits == 1 and programs < column_tiles:
            self._linear_stream(stream, w, out, eps, gelu, tiles, programs)
            return stream.stats, stream.width
        new_stats = _room_for_stats(x, column_tiles * add, B)
        parts = w.bias.new_empty(row_tiles * column_tiles * tiles.splits * tiles.BM * tiles.BN * (tiles.splits > 1))
        stats, width = (w.bias, 0) if stream is None else (stream.stats, stream.width)
        tensors = (x, *w[:3], stats, out, new_stats, parts, self.counters)
        shape = (N, K, width, _powers(K, width), w.rms, gelu, w.gated, add, self.float32)
        constants = (*shape, tiles.BM, tiles.BN, tiles.BK, tiles.splits, tiles.stages)
        launch = self._launch(linear_kernel, tensors, (B, eps), constants, tiles.warps)
        launch((row_tiles, column_tiles, tiles.splits), *tensors, B, eps)
        return new_stats, tiles.BN

    def _linear_stream(
        self, x: Stream, w: Folded, out: Tensor, eps: float, gelu: bool, tiles: Tiles, programs: int
    ) -> None:
        (B, K), N = x.x.shape, len(w.weight)
        tensors = (x.x, *w[:3], x.stats, out)
        shape = (N, K, x.width, _powers(K, x.width), w.rms, gelu, w.gated, self.float32)
        constants = (*shape, tiles.BM, tiles.BN, tiles.BK, tiles.stages)
        launch = self._launch(linear_stream_kernel, tensors, (B, eps), constants, tiles.warps)
        launch((triton.cdiv(B, tiles.BM), programs, 1), *tensors, B, eps)

    def _launch(
        self,
        kernel: Any,
        tensors: Sequence[Tensor],
        numbers: tuple[Any, ...],
        constants: tuple[int, ...],
        warps: int = 4,
    ) -> Launch:
        arguments = (*[t.dtype for t in tensors], *[type(number)(0) for number in numbers])
        return compiled(kernel, arguments, (*constants, self.pdl), self.device, warps, self.pdl)

    def _tiles(self, rows: int, weight: Tensor) -> Any:
        """`Tiles`; None where none fit."""
        outputs, inputs = weight.shape
        return tiles_for(rows, inputs, outputs, weight.itemsize, self.shared_memory)

    def _programs(self, tiles: Tiles, rows: int, weight: Tensor) -> int:
        """Of a product whose programs make one tile after the other."""
        return tiles.programs_for(rows, len(weight), weight.itemsize, self.shared_memory, self.processors)


def _room_for_stats(like: Tensor, tiles: int, B: int) -> Tensor:
    """float32 [2, tiles, B] on the device of `like`, with room for the most rows: the kernels read whole tiles."""
    return like.new_empty(2, tiles, MOST_ROWS, dtype=torch.float32)[..., :B]


def _powers(K: int, width: int) -> int:
    """The power of two that holds the tiles of a row of K numbers; 1 where there is no norm."""
    return triton.next_power_of_2(triton.cdiv(K, width)) if width else 1
