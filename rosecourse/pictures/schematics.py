"""Pictures of ideas that no single run shows: they are drawn by hand, and say so where their lengths mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from .colours import COLOURS, INK
from .labels import SMALL

WAIT = "#CCCCCC"
STEP_1, STEP_2 = COLOURS["block_tables"], "#E69F00"
SAME, OTHER = "#007A59", COLOURS["kv_append"]


class _Span(NamedTuple):
    """Something that host or device does. lane: 0 is the host's."""

    lane: int
    start: float
    length: float
    text: str
    colour: str


# In each: the device is still at work on an earlier step when the host comes to the next.
_WITHOUT = (
    _Span(0, 0.0, 1.6, "write rows\nof step 1", STEP_1),
    _Span(0, 1.6, 0.8, "launch\ncopy", WAIT),
    _Span(0, 2.4, 2.0, "the rest\nof step 1", WAIT),
    _Span(0, 4.4, 1.6, "write rows\nof step 2", STEP_2),
    _Span(1, 0.0, 6.2, "still busy with earlier kernels", WAIT),
    _Span(1, 6.2, 1.6, "copy for step 1\nreads the buffer", OTHER),
)
_WITH = (
    *_WITHOUT[:3],
    _Span(0, 4.4, 3.4, "wait for the copy", "white"),
    _Span(0, 7.8, 1.6, "write rows\nof step 2", STEP_2),
    _Span(1, 0.0, 6.2, "still busy with earlier kernels", WAIT),
    _Span(1, 6.2, 1.6, "copy for step 1\nreads the buffer", STEP_1),
)


def pinned_buffer_race(ax: Axes) -> None:
    """Host and device on a time axis: a pinned buffer that is rewritten too early, and one that is waited for.

    A schematic, not to scale. Figures of 8.2 x 3.8 inches with `layout="constrained"` suit it.
    """
    for top, spans, told in (
        (0.0, _WITHOUT, "without the wait: the copy for step 1 finds the rows of step 2"),
        (3.4, _WITH, "with the wait: the buffer is written again when the copy has read it"),
    ):
        ax.text(0, top + 0.3, told, fontsize=SMALL + 1, weight="bold", color=INK, va="center")
        for span in spans:
            y = top + 1.15 + 1.15 * span.lane
            edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.8}
            hatch = "//" if span.text.startswith("wait") else None
            ax.barh([y], [span.length], 0.95, left=span.start, color=span.colour, hatch=hatch, **edge)
            dark = span.colour == STEP_1
            box = {"facecolor": span.colour, "edgecolor": "none", "pad": 1}
            middle = span.start + span.length / 2
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "bbox": box}
            ax.text(middle, y, span.text, color="white" if dark else "black", **style)
    ax.set_label("Host and device on two time axes, one above the other: without a wait and with one")
    ax.set(xlim=(0, 9.6), ylim=(6.6, -0.1), xticks=[])
    ax.set_yticks([1.15, 2.3, 4.55, 5.7], ["host", "device"] * 2)
    ax.set_xlabel("time (a schematic, not to scale)", fontsize=SMALL)
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.spines[["top", "right", "left"]].set_visible(False)


def signatures(ax: Axes, one: Sequence[int], other: Sequence[int]) -> None:
    """Two rows of block ids, each with its signature (number of ids, last id), and where they differ.

    Figures of 8.2 x 1.9 inches with `layout="constrained"` suit it.
    """
    equal = _signature(one) == _signature(other)
    longest = max(len(one), len(other))
    ax.set_label("Two rows of block ids, each with its signature; the ids that differ are outlined and hatched")
    for top, ids, name in ((0.0, one, "the kept row shows"), (1.3, other, "the list is now")):
        ax.text(-0.25, top + 0.5, name, ha="right", va="center", fontsize=SMALL + 1, color=INK)
        for place, block_id in enumerate(ids):
            differs = place >= min(len(one), len(other)) or one[place] != other[place]
            edge: dict[str, Any] = {"edgecolor": OTHER if differs else INK, "linewidth": 3 if differs else 1}
            ax.barh([top + 0.5], [0.9], 0.8, left=place, facecolor="#ECEFF1", hatch="//" if differs else None, **edge)
            box = {"facecolor": "#ECEFF1", "edgecolor": "none", "pad": 1.5}
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL + 2, "bbox": box}
            ax.text(place + 0.45, top + 0.5, f"block {block_id}", **style)
        signature = "({}, {})".format(*_signature(ids))
        style = {"va": "center", "fontsize": SMALL + 2, "weight": "bold", "color": SAME if equal else INK}
        ax.text(longest + 0.25, top + 0.5, f"signature {signature}", **style)
    told = "the signatures are equal, the rows are not" if equal and list(one) != list(other) else ""
    told = told or ("the signatures tell them apart" if not equal else "nothing has changed")
    ax.text(longest + 1.75, 1.15, told, va="center", fontsize=SMALL + 1, color=INK)
    ax.set(xlim=(-1.8, longest + 4.2), ylim=(2.5, -0.1), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _signature(ids: Sequence[int]) -> tuple[int, int]:
    """What lesson 036 compares: the number of ids, and the last of them (-1 where there is none)."""
    return len(ids), ids[-1] if ids else -1
