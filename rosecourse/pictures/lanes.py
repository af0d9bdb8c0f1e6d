"""From the lanes of one program of the append kernel (lesson 061) to addresses in the cache."""

from __future__ import annotations

from .colours import EMPTY, HEADS
from .grid import Cell, Grid, draw_grids, heads, label
from .sheet import Picture


def lanes_to_addresses(H: int, D: int, block_size: int, block: int, pos: int, BLOCK_HD: int) -> Picture:
    """The lanes of the program that writes slot `pos` of a block, in a cache [num_blocks, H, block_size, D].

    Below them the elements of the block with their addresses, a row for each head; those that a lane writes have the
    lane's colour, that of its head. Up to 32 lanes, and elements in a head of a block, can be read.
    """

    def cell(number: int, head: int | None) -> Cell:
        return Cell(str(number), EMPTY if head is None else HEADS[head % len(HEADS)], faint=head is None)

    lanes = [cell(hd, hd // D if hd < H * D else None) for hd in range(BLOCK_HD)]
    elements = range(block_size * D)
    rows = [
        [label("slot", faint=True), *heads([n // D for n in elements])],
        [label("dim", faint=True), *heads([n % D for n in elements])],
    ]
    for h in range(H):
        first = (block * H + h) * block_size * D
        rows.append([label(f"head {h}"), *(cell(first + n, h if n // D == pos else None) for n in elements)])
    title = f"One program of {BLOCK_HD} lanes, and the addresses in block {block}"
    said = f"{title}: a row for each of {H} heads. The lanes write those of slot {pos}"
    return draw_grids(
        title, [Grid([[label("lane hd"), *lanes]]), Grid(rows)], [(EMPTY, "masked (hd >= H · D), or not written")], said
    )
