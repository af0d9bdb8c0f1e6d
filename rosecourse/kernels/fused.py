"""The five operations of a transformer layer around small matrix products, each one Triton kernel.

What goes from one to the next is a `Stream`: the rows, and what the kernel that wrote them knows of each tile of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..checks import require
from .compile import compiled
from .ends import choose_of_tiles_kernel, embed_kernel, head_kernel
from .launch import Launch
from .linear import linear_kernel
from .tiles import MOST_ROWS, Tiles, shared_memory_of, tiles_for

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
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

    An RMS norm takes no mean off: norm(x) @ w.T + b = x @ weight.T / rms(x) + bias.
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

    None is a gain of 1, or a bias of 0. Sums are in float32, and in float64 for a model in float32.
    gated: the first half of the outputs are gates, the second what they are multiplied by; they are put side by side.
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
        require(dtype in DTYPES, f"the kernels of linear maps know no {dtype}: give float16, bfloat16 or float32")
        self.device, self.dtype, self.pdl = device, dtype, pdl
        self.shared_memory = shared_memory_of(device)
        self.float32 = dtype == torch.bfloat16 and device.type == "cpu"  # interpreted
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)  # each kernel leaves them at 0

    def fits(self, rows: int, weight: Tensor) -> bool:
        """Whether the device has the shared memory for a product with a weight [out, in]."""
        return self._tiles(rows, weight) is not None

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor | None) -> Stream:
        """wte[token_ids] + wpe[positions], rounded to their dtype.

        token_ids, positions: int [B]; wte [V, C]; wpe [context, C], None is nothing to add.
        """
        B, C = len(token_ids), wte.shape[1]
        require(0 < B <= self.most_rows, f"{B} rows for small products: give 1 to {self.most_rows}")
        x, stats = wte.new_empty(B, C), _room_for_stats(wte, 1, B)
        tensors = (token_ids, positions, wte, wte if wpe is None else wpe, x, stats)
        constants = (C, triton.next_power_of_2(C), wpe is not None, self.pdl)
        launch = _launch_embed(tuple([t.dtype for t in tensors]), constants, self.device)
        launch((B, 1, 1), *tensors, B)
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
        tiles = self._tiles_that_fit(B, w.weight)
        count = triton.cdiv(V, tiles.BN)
        stride = triton.cdiv(V, MULTIPLE) * MULTIPLE
        logits = x.x.new_empty(B, stride)
        best, best_ids = (x.x.new_empty(B, count, dtype=dtype) for dtype in (torch.float32, torch.int32))
        tensors = (x.x, *w[:3], x.stats, logits, best, best_ids)
        constants = (V, stride, C, x.width, _powers(C, x.width), w.rms, self.float32)
        launch = _launch_head(self.dtype, constants, tiles, self.pdl, self.device)
        launch((triton.cdiv(B, tiles.BM), count, 1), *tensors, B, eps)
        return Head(logits[:, :V], best, best_ids)

    def choose(self, head: Head, live: Tensor, token_ids: Tensor, context_lens: Tensor) -> Tensor:
        """`kernels.choose` by the best of each tile: int64 [B], -1 for a row whose largest logit is not finite.

        token_ids, int64 [B], becomes these tokens, and 0 for -1; live, int64 [B], is added to context_lens, int64 [B].
        """
        B, count = head.best.shape
        tokens = torch.empty_like(token_ids)
        tensors = (head.best, head.best_ids, live, tokens, token_ids, context_lens)
        constants = (count, triton.next_power_of_2(count), head.logits.shape[1], self.pdl)
        _launch_choose(tuple([t.dtype for t in tensors]), constants, self.device)((B, 1, 1), *tensors)
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
        tiles = self._tiles_that_fit(B, w.weight)
        row_tiles, column_tiles = triton.cdiv(B, tiles.BM), triton.cdiv(N, tiles.BN)
        new_stats = _room_for_stats(x, column_tiles * add, B)
        parts = w.bias.new_empty(row_tiles * column_tiles * tiles.splits * tiles.BM * tiles.BN * (tiles.splits > 1))
        stats, width = (w.bias, 0) if stream is None else (stream.stats, stream.width)
        tensors = (x, *w[:3], stats, out, new_stats, parts, self.counters)
        constants = (N, K, width, _powers(K, width), w.rms, gelu, w.gated, add, self.float32)
        launch = _launch_linear(self.dtype, constants, tiles, self.pdl, self.device)
        launch((row_tiles, column_tiles, tiles.splits), *tensors, B, eps)
        return new_stats, tiles.BN

    def _tiles(self, rows: int, weight: Tensor) -> Tiles | None:
        outputs, inputs = weight.shape
        return tiles_for(rows, inputs, outputs, weight.itemsize, self.shared_memory)

    def _tiles_that_fit(self, rows: int, weight: Tensor) -> Tiles:
        tiles = self._tiles(rows, weight)
        require(tiles is not None, f"no tile of a matrix of {list(weight.shape)} fits into {self.shared_memory} bytes")
        assert tiles is not None
        return tiles


def _room_for_stats(like: Tensor, tiles: int, B: int) -> Tensor:
    """float32 [2, tiles, B] on the device of `like`, with room for the most rows that there can be.

    The kernels read whole tiles of rows, the last one too: what is made of rows that are not there is never stored.
    """
    return like.new_empty(2, tiles, MOST_ROWS, dtype=torch.float32)[..., :B]


def _powers(K: int, width: int) -> int:
    """The power of two that holds the tiles of a row of K numbers; 1 where there is no norm."""
    return triton.next_power_of_2(triton.cdiv(K, width)) if width else 1


# Constants go in the order of the kernels. A binary belongs to one device.


@cache
def _launch_linear(dtype: torch.dtype, shape: tuple[int, ...], tiles: Tiles, pdl: bool, device: torch.device) -> Launch:
    names = ("N", "K", "WIDTH", "TILES2", "RMS", "GELU", "GATED", "ADD", "FLOAT32")
    constants: dict[str, Any] = dict(zip(names, shape, strict=True))
    constants |= {"BM": tiles.BM, "BN": tiles.BN, "BK": tiles.BK, "SPLITS": tiles.splits, "STAGES": tiles.stages}
    f32 = torch.float32
    arguments: list[torch.dtype | int | float] = [dtype, dtype, f32, f32, f32, dtype, f32, f32, torch.int32, 0, 1.0]
    return compiled(linear_kernel, arguments, tiles.warps, launch_pdl=pdl, **constants, PDL=pdl)


@cache
def _launch_head(dtype: torch.dtype, shape: tuple[int, ...], tiles: Tiles, pdl: bool, device: torch.device) -> Launch:
    names = ("V", "STRIDE", "K", "WIDTH", "TILES2", "RMS", "FLOAT32")
    constants: dict[str, Any] = dict(zip(names, shape, strict=True))
    constants |= {"BM": tiles.BM, "BN": tiles.BN, "BK": tiles.BK, "STAGES": tiles.stages}
    f32 = torch.float32
    arguments: list[torch.dtype | int | float] = [dtype, dtype, f32, f32, f32, dtype, f32, torch.int32, 0, 1.0]
    return compiled(head_kernel, arguments, tiles.warps, launch_pdl=pdl, **constants, PDL=pdl)


@cache
def _launch_embed(dtypes: tuple[torch.dtype, ...], constants: tuple[int, ...], device: torch.device) -> Launch:
    named: dict[str, Any] = dict(zip(("C", "BLOCK_C", "WPE", "PDL"), constants, strict=True))
    return compiled(embed_kernel, [*dtypes, 0], launch_pdl=bool(named["PDL"]), **named)


@cache
def _launch_choose(dtypes: tuple[torch.dtype, ...], constants: tuple[int, ...], device: torch.device) -> Launch:
    named: dict[str, Any] = dict(zip(("TILES", "TILES2", "V", "PDL"), constants, strict=True))
    return compiled(choose_of_tiles_kernel, dtypes, launch_pdl=bool(named["PDL"]), **named)
