"""Pictures of ideas that no single run shows: they are drawn by hand, and say so where their lengths mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from .colours import COLOURS, INK
from .labels import SMALL
from .stacked import name_rows
from .time_axis import WAITS, Bar, draw_lanes

BUSY = "#CCCCCC"
STEP_1, STEP_2 = COLOURS["block_tables"], "#E69F00"
SAME, OTHER = "#007A59", COLOURS["kv_append"]


# In each: the device is still at work on an earlier step when the host comes to the next.
_BUSY = Bar(0.0, 6.4, BUSY, "still busy with earlier kernels")
_HOST = [
    Bar(0.0, 1.6, STEP_1, "write rows\nof step 1"),
    Bar(1.6, 1.1, BUSY, "launch\ncopy"),
    Bar(2.7, 1.9, BUSY, "the rest\nof step 1"),
]
_COPY, _WRITE = "copy for step 1\nreads the buffer", "write rows\nof step 2"
_RACE = {
    "without the wait: the copy for step 1 finds the rows of step 2": {
        "host": [*_HOST, Bar(4.6, 1.6, STEP_2, _WRITE)],
        "device": [_BUSY, Bar(6.4, 2.0, OTHER, _COPY)],
    },
    "with the wait: the buffer is written again when the copy has read it": {
        "host": [*_HOST, Bar(4.6, 3.8, WAITS, "wait for the copy"), Bar(8.4, 1.6, STEP_2, _WRITE)],
        "device": [_BUSY, Bar(6.4, 2.0, STEP_1, _COPY)],
    },
}


def pinned_buffer_race(ax: Axes) -> None:
    """Host and device on a time axis: a pinned buffer that is rewritten too early, and one that is waited for.

    A schematic, not to scale. Figures of 8.2 x 3.8 inches with `layout="constrained"` suit it.
    """
    draw_lanes(ax, _RACE, "", "time (a schematic, not to scale)")
    ax.set_label("Host and device on two time axes, one above the other: without a wait and with one")
    ax.set_xticks([])


def signatures(ax: Axes, one: Sequence[int], other: Sequence[int]) -> None:
    """Two rows of block ids, each with its signature (number of ids, last id), and where they differ.

    Figures of 8.2 x 1.9 inches with `layout="constrained"` suit it.
    """
    mine, its = _signature(one), _signature(other)
    told = "the signatures tell them apart" if mine != its else "the signatures are equal, the rows are not"
    ax.set_label("Two rows of block ids, each with its signature; the ids that differ are outlined and hatched")
    ax.set_title(told if list(one) != list(other) else "nothing has changed", fontsize=SMALL + 1)
    longest = max(len(one), len(other))
    for row, ids in enumerate((one, other)):
        for place, block_id in enumerate(ids):
            differs = place >= min(len(one), len(other)) or one[place] != other[place]
            edge = {"edgecolor": OTHER, "linewidth": 3, "hatch": "//"} if differs else {"edgecolor": INK}
            drawn = ax.barh(row, 0.9, 0.7, left=place, facecolor="#ECEFF1", **edge)
            box = {"facecolor": "#ECEFF1", "edgecolor": "none", "pad": 1.5}
            ax.bar_label(drawn, [f"block {block_id}"], label_type="center", fontsize=SMALL + 2, bbox=box)
        ink = SAME if mine == its else INK
        signature = f"signature {_signature(ids)}"
        ax.text(longest + 0.2, row, signature, va="center", fontsize=SMALL + 2, weight="bold", color=ink)
    name_rows(ax, ["the kept row shows", "the list is now"])
    ax.set(xlim=(0, longest + 2), xticks=[])
    ax.spines[:].set_visible(False)


def _signature(ids: Sequence[int]) -> tuple[int, int]:
    """What lesson 036 compares: the number of ids, and the last of them (-1 where there is none)."""
    return len(ids), ids[-1] if ids else -1
