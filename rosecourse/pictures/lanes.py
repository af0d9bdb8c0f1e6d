"""From the lanes of one program of the append kernel (lesson 061) to addresses in the cache."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..checks import is_count, require
from .colours import INK
from .labels import SMALL

# None is the colour of one of the first three requests in the pictures of blocks, and neighbouring heads differ in
# brightness as well as in colour. All are light enough for black text.
HEADS = ("#D55E00", "#BBE3D5", "#CC79A7", "#56B4E9")
MASKED = "#FFFFFF"
ELSE = "#ECEFF1"  # elements of the block that this program does not write
WIDEST = 32  # lanes that can be drawn with their numbers


class Lane(NamedTuple):
    """One lane of a program. address: of the element that it writes; None where it is masked, because hd >= H * D."""

    hd: int
    head: int
    dim: int
    address: int | None


def lanes_of(H: int, D: int, block_size: int, block: int, pos: int, BLOCK_HD: int) -> list[Lane]:
    """Every lane of the program that writes slot `pos` of a block, in a cache [num_blocks, H, block_size, D]."""
    lanes = []
    for hd in range(BLOCK_HD):
        h, d = divmod(hd, D)
        lanes.append(Lane(hd, h, d, ((block * H + h) * block_size + pos) * D + d if hd < H * D else None))
    return lanes


def lanes_to_addresses(ax: Axes, H: int, D: int, block_size: int, block: int, pos: int, BLOCK_HD: int) -> None:
    """The lanes of one program above; below, the elements of its block with their addresses, in their lanes' colours.

    A row of the block is one head: block_size slots of D elements, one after the other in memory. Figures of 8.2 x 3.8
    inches suit it, with `layout="constrained"`. Raises `ConfigError` for sizes that cannot be drawn, and for a slot
    that is not there.
    """
    counts = (H, D, block_size, BLOCK_HD)
    require(all(map(is_count, counts)), f"H, D, block_size, BLOCK_HD are {counts}: give 1 or more of each")
    require(H * D <= BLOCK_HD <= WIDEST, f"BLOCK_HD is {BLOCK_HD}: give {H * D} to {WIDEST}, or fewer heads")
    require(block_size * D <= WIDEST, f"a head has {block_size * D} elements in a block: at most {WIDEST} can be drawn")
    require(is_count(block, 0) and is_count(pos, 0) and pos < block_size, f"there is no slot {pos} in block {block}")
    lanes = lanes_of(H, D, block_size, block, pos, BLOCK_HD)
    per_head = block_size * D
    top = 2.7  # where the block begins, below the lanes
    _draw_lanes(ax, lanes)
    for h in range(H):
        _draw_head(ax, h, top + 1.25 * h, lanes, per_head, (block * H + h) * per_head)
    for slot in range(block_size):
        weight = "bold" if slot == pos else "normal"
        _say(ax, (slot + 0.5) * D, top - 0.35, f"slot {slot}", weight=weight)
    widest = max(BLOCK_HD, per_head)
    ax.set(xlim=(-3.4, widest + 0.2), ylim=(top + 1.25 * H + 0.1, -0.9), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    slots = f"slot {pos} of block {block}: {H} heads of {D} numbers, {per_head} addresses apart"
    ax.set_label(f"{BLOCK_HD} lanes of one program above; below, where they write, which is {slots}")
    _say(ax, -0.2, 0.5, "lane hd", ha="right")
    _say(ax, -0.2, top - 0.35, f"block {block}", ha="right")
    _say(ax, widest / 2, -0.55, f"one program: BLOCK_HD = {BLOCK_HD} lanes, head = hd // {D}, dim = hd % {D}")


def _draw_lanes(ax: Axes, lanes: list[Lane]) -> None:
    for lane in lanes:
        hatch = "////" if lane.address is None else None
        colour = MASKED if hatch else HEADS[lane.head % len(HEADS)]
        ax.add_patch(Rectangle((lane.hd, 0), 1, 1, facecolor=colour, edgecolor=INK, hatch=hatch))
        box = {"facecolor": colour, "edgecolor": "none", "pad": 0.6}
        _say(ax, lane.hd + 0.5, 0.5, str(lane.hd), color="black", bbox=box)
    masked = [lane.hd for lane in lanes if lane.address is None]
    if masked:
        _say(ax, (masked[0] + masked[-1] + 1) / 2, 1.35, "masked: hd >= H · D")


def _draw_head(ax: Axes, h: int, y: float, lanes: list[Lane], per_head: int, first: int) -> None:
    """One head of the block: its elements, those written in the head's colour, with their addresses."""
    written = {lane.address for lane in lanes}
    for n in range(per_head):
        colour = HEADS[h % len(HEADS)] if first + n in written else ELSE
        ax.add_patch(Rectangle((n, y), 1, 1, facecolor=colour, edgecolor=INK, linewidth=0.8))
        ink = "black" if first + n in written else "#595959"
        _say(ax, n + 0.5, y + 0.5, str(first + n), color=ink)
    _say(ax, -0.2, y + 0.5, f"head {h}", ha="right")


def _say(ax: Axes, x: float, y: float, text: str, **style: Any) -> None:
    ax.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": SMALL, "color": INK, "zorder": 4, **style})
