"""The whole ladder in one picture: what every rung makes of a workload, and a decode step of the first and the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..checks import require
from ..measure.anatomy import PART_NAMES
from ..measure.timeline import KIND_LABELS, PARTS, Timeline
from ..records.whole_ladder import RecordedRung
from .colours import AFTER, COLOURS, INK, KIND_COLOURS
from .labels import APART, SMALL, axes_points, text_points

REST = "#DDDDDD"  # of a step: light, so that the parts stand out
REST_NAME = "wait for the tokens, and hand them out"
ROOM_FOR_LABELS = 1.72  # times the longest bar


def draw_ladder(ax: Axes, rungs: Sequence[RecordedRung], title: str, named: bool = True) -> None:
    """A bar for each rung, the first lesson on top: tokens/s, with the share of the floor that its steps reach.

    named: whether the rows are labelled with their lessons. Figures in which a row has 0.25 inches suit it. Raises
    `ConfigError` where there are no rungs.
    """
    require(len(rungs) > 0, "there are no rungs to draw: give one or more")
    throughputs = [rung.throughput for rung in rungs]
    ax.barh(range(len(rungs)), throughputs, 0.72, color=AFTER["color"])
    for row, rung in enumerate(rungs):
        text = f"{rung.throughput:,.0f}  ({100 * rung.share_of_floor:.2g} %)"
        place = (rung.throughput, row)
        style: dict[str, Any] = {"va": "center", "fontsize": SMALL, "color": INK}
        ax.annotate(text, place, (4, 0), textcoords="offset points", **style)
    ax.set(ylim=(len(rungs) - 0.4, -0.6), xlim=(0, ROOM_FOR_LABELS * max(throughputs)), xticks=[])
    ax.set_yticks(range(len(rungs)), [f"{rung.number} {rung.title}" if named else "" for rung in rungs])
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.set_title(title, fontsize=SMALL + 1, loc="left")


def draw_step(ax: Axes, timeline: Timeline, title: str) -> None:
    """A decode step over the whole width: the host's parts above, the device's kernels below, each in its colour.

    The axis has no numbers: the profiler makes the host slower, so that lengths are to be compared within a step alone.
    """
    ax.set(xlim=(0, timeline.step_us), ylim=(2, 0), xticks=[])
    ax.set_yticks([0.5, 1.5], ["host", "GPU"])
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=SMALL + 1, loc="left")
    bars = [(PARTS[r.name], r.start_us, r.duration_us) for r in timeline.ranges if r.name in PARTS]
    end = max((start + width for _, start, width in bars), default=0.0)
    _draw_part(ax, REST, REST_NAME, 0, timeline.step_us, (end, timeline.step_us))
    for part, start, width in bars:
        _draw_part(ax, COLOURS[part], PART_NAMES[part], start, width, (start, start + width))
    ax.hlines(1.5, 0, timeline.step_us, color=REST, linewidth=0.8, zorder=0)
    for kind, colour in KIND_COLOURS.items():
        spans = [(k.start_us, k.duration_us) for k in timeline.kernels if k.kind == kind]
        ax.broken_barh(spans, (1.08, 0.84), facecolor=colour, edgecolor="none", linewidth=0, snap=False)


def _draw_part(ax: Axes, colour: str, name: str, start: float, width: float, room: tuple[float, float]) -> None:
    """A bar of the host's lane, named in the middle of its room where the name fits."""
    ax.barh([0.5], [width], 0.84, left=start, color=colour, edgecolor="none")
    points = axes_points(ax)[0] / ax.get_xlim()[1]
    if text_points(name) + APART < points * (room[1] - room[0]):
        ink = "white" if colour == COLOURS["block_tables"] else "black"
        ax.text(sum(room) / 2, 0.5, name, ha="center", va="center", fontsize=SMALL, color=ink)


def kinds_legend(ax: Axes, timelines: Sequence[Timeline]) -> None:
    """Below the axes: the kinds of the kernels in these timelines, and their colours."""
    there = [kind for kind in KIND_LABELS if any(k.kind == kind for one in timelines for k in one.kernels)]
    patches = [Patch(color=KIND_COLOURS[kind], label=KIND_LABELS[kind]) for kind in there]
    style: dict[str, Any] = {
        "frameon": False,
        "fontsize": SMALL,
        "handlelength": 1.2,
        "columnspacing": 1.4,
        "borderaxespad": 0,
    }
    ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.06), ncols=len(patches), **style)
