"""How large the tiles of the small matrix products are: by the number of rows, and by the shape of the matrix.

Many small tiles keep the whole GPU reading, large ones read the rows less often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from triton.runtime import driver

VOCABULARY = 32768  # a matrix with so many outputs, or more, is taken for that of the logits
MOST_ROWS = 256  # of a product: with more the library, which reads the rows less often, wins
TALLEST = 64  # rows of a tile
TALLEST_OF_LOGITS = 128
LEAST = 16  # rows, columns or inputs that a product on the tensor cores has
ENOUGH = 96  # programs: so many keep a GPU busy
SHORTEST = 256  # inputs that are worth a program of their own
LARGE = 1 << 22  # numbers of a matrix whose reads take far longer than a kernel's start
SCRATCH = 16384  # bytes of shared memory, at most, that a program needs beside its buffers, to store what it has made
TOGETHER = 4  # programs on a multiprocessor, at most
UNLIMITED = 1 << 30  # what a device without shared memory, a CPU, is taken to have of it


@dataclass(frozen=True)
class Tiles:
    """BM x BN numbers of the result, in `splits` parts of the inputs, BK inputs at a time.

    stages: of the pipeline that reads ahead, each with its own buffers. warps: of a program.
    """

    BM: int
    BN: int
    BK: int
    splits: int
    stages: int
    warps: int

    def bytes_for(self, itemsize: int) -> int:
        """Shared memory that a program has for its buffers."""
        return self.stages * (self.BM + self.BN) * self.BK * itemsize

    def programs_for(self, rows: int, outputs: int, itemsize: int, limit: int, processors: int) -> int:
        """How many programs make all tiles of [rows, outputs], each of the same rows: those that run at a time.

        All of them make the same number of tiles, or one less. limit, processors: see `limits_of`.
        """
        at_a_time = processors * max(1, min(limit // self.bytes_for(itemsize), TOGETHER))
        tiles = -(-outputs // self.BN)
        return -(-tiles // -(-tiles // max(1, at_a_time // -(-rows // self.BM))))


# From so many rows on: (inputs, outputs) of a matrix to BN, BK, splits, stages, warps. Tuned for GPT-2 124M on an H200
# in whole steps of 1, 16, 64 and 128 rows, the logits by themselves; between these, whichever was fastest.
TUNED = {
    1: {
        (768, 2304): (32, 128, 1, 5, 2),
        (768, 768): (16, 128, 2, 3, 2),
        (768, 3072): (32, 128, 1, 5, 2),
        (3072, 768): (16, 128, 6, 4, 2),
        (768, VOCABULARY): (128, 128, 1, 5, 4),
    },
    16: {
        (768, 2304): (16, 128, 1, 3, 2),
        (768, 768): (16, 128, 1, 6, 2),
        (768, 3072): (16, 128, 1, 6, 2),
        (3072, 768): (16, 128, 4, 5, 2),
        (768, VOCABULARY): (128, 128, 1, 5, 4),
    },
    33: {
        (768, 2304): (32, 128, 1, 5, 4),
        (768, 768): (16, 128, 1, 6, 2),
        (768, 3072): (32, 128, 1, 5, 4),
        (3072, 768): (32, 128, 3, 5, 4),
        (768, VOCABULARY): (128, 64, 1, 3, 4),
    },
    65: {
        (768, 2304): (64, 128, 1, 5, 4),
        (768, 768): (32, 128, 1, 5, 4),
        (768, 3072): (64, 128, 1, 4, 4),
        (3072, 768): (32, 256, 2, 3, 4),
        (768, VOCABULARY): (64, 64, 1, 4, 4),
    },
}


def tiles_for(rows: int, inputs: int, outputs: int, itemsize: int, limit: int) -> Tiles | None:
    """The tiles of a product of so many rows with a matrix of [outputs, inputs]; None where none fit.

    itemsize: bytes of a number. limit: bytes of shared memory that a program may have.
    """
    of_logits = outputs >= VOCABULARY
    bm = min(max(LEAST, 1 << (rows - 1).bit_length()), TALLEST_OF_LOGITS if of_logits else TALLEST)
    tuned = TUNED[max(least for least in TUNED if least <= rows)]
    found = tuned.get((inputs, VOCABULARY if of_logits else outputs)) if itemsize == 2 else None
    tiles = _default(bm, -(-rows // bm), inputs, outputs, itemsize) if found is None else Tiles(bm, *found)
    return fitting(tiles, itemsize, limit - SCRATCH)


def _default(bm: int, row_tiles: int, inputs: int, outputs: int, itemsize: int) -> Tiles:
    """For a shape that nobody has tuned; for large ones by the matrices of Llama 1B and 8B, on an H200."""
    if outputs >= VOCABULARY:
        if itemsize > 2:
            return Tiles(bm, 64, 64, 1, 3, 4)
        return Tiles(bm, 64, 64, 1, 5, 4) if inputs < 1024 else Tiles(bm, 128, 128, 1, 4, 4)
    if itemsize > 2:
        return Tiles(bm, 32, 64, _splits(row_tiles * -(-outputs // 32), ENOUGH, inputs, SHORTEST), 4, 4)
    if inputs * outputs < LARGE:
        bn = 16 if outputs < 1536 else 32
        splits = _splits(row_tiles * -(-outputs // bn), 64, inputs, 384)
        if bn == 16:
            return Tiles(min(bm, 32), bn, 256, 1, 3, 2) if splits == 1 else Tiles(bm, bn, 256, splits, 4, 4)
        return Tiles(bm, bn, 128 if inputs % (128 * splits) == 0 else 64, splits, 5, 4)
    if outputs >= ENOUGH * 128:
        if bm == TALLEST:
            return Tiles(bm, 128, 64, 1, 5, 8)
        return Tiles(bm, 128, 128, 1, 4 if outputs >= 2 * ENOUGH * 128 else 5, 4)
    if bm < TALLEST:
        if inputs > 8192:
            return Tiles(bm, 64, 128, _splits(row_tiles * -(-outputs // 64), ENOUGH, inputs, 512), 8, 4)
        enough = 128 if bm == LEAST else 256
        return Tiles(bm, 64, 128, _splits(row_tiles * -(-outputs // 64), enough, inputs, 512), 5, 4)
    bn, stages, warps = (64, 5, 8) if outputs >= 4096 or inputs >= 8192 else (32, 6, 4)
    return Tiles(bm, bn, 128, _splits(row_tiles * -(-outputs // bn), ENOUGH, inputs, 512), stages, warps)


def _splits(programs: int, enough: int, inputs: int, shortest: int) -> int:
    """Into how many parts inputs go, so that there are enough programs: 1, 2, 4 or 8."""
    splits = 1
    while splits < 8 and programs * splits < enough and inputs // (2 * splits) >= shortest:
        splits *= 2
    return splits


def fitting(tiles: Tiles, itemsize: int, limit: int) -> Tiles | None:
    """These tiles or smaller ones, with buffers that fit into `limit` bytes; None where none do."""
    while tiles.bytes_for(itemsize) > limit:
        if tiles.stages > 2:
            tiles = replace(tiles, stages=tiles.stages - 1)
        elif tiles.BK > 2 * LEAST:
            tiles = replace(tiles, BK=tiles.BK // 2)
        elif max(tiles.BM, tiles.BN) > LEAST:
            larger = "BM" if tiles.BM > tiles.BN else "BN"
            tiles = replace(tiles, **{larger: getattr(tiles, larger) // 2})
        else:
            return None
    return tiles


def limits_of(device: torch.device) -> tuple[int, int]:
    """Bytes of shared memory that a program on a device may have, and its multiprocessors."""
    if device.type != "cuda":
        return UNLIMITED, 1
    index = torch.cuda.current_device() if device.index is None else device.index
    found = driver.active.utils.get_device_properties(index)
    return int(found["max_shared_mem"]), int(found["multiprocessor_count"])
