"""The whole ladder in one picture: what every rung makes of a workload, and a decode step of the first and the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.patches import Patch

from ..measure.anatomy import PART_NAMES
from ..measure.timeline import KIND_LABELS, PARTS, Kernel, Timeline
from ..records.whole_ladder import WholeLadder
from .colours import AFTER, COLOURS, INK, KIND_COLOURS
from .labels import APART, SMALL, axes_points, text_points

REST = "#DDDDDD"  # of a step: light, so that the parts stand out
REST_NAME = "wait for the tokens, and hand them out"
AGAIN = "#7FACC9"  # the lighter bar of a rung that was recorded twice
ROW = 0.72  # the height of its bars
ROOM_FOR_LABELS = 1.62  # times the longest bar
SHARES = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)  # per cent of the memory's limit
SCALE = 0.7  # of the limit: where the scale ends, the same in all ladders, so that their bars can be compared


def draw_ladder(ax: Axes, ladder: WholeLadder, title: str, named: bool = True) -> None:
    """A bar for each rung, the first lesson on top: tokens/s above, below the same as a share of the memory's limit.

    A rung that was recorded twice, beside the one before it and beside the one after it, has two bars of half the
    height. The scale ends at `SCALE`, or further out where a bar needs it. named: whether the rows are labelled with
    their lessons. Figures in which a row has 0.25 inches suit it.
    """
    for row, rung in enumerate(ladder.rungs):
        again = rung.beside_next
        figures = [rung.throughput] if again is None else [rung.throughput, again]
        height = ROW / len(figures)
        for place, figure in enumerate(figures):
            ax.barh(
                row + height * (place - (len(figures) - 1) / 2), figure, height, color=(AFTER["color"], AGAIN)[place]
            )
        style: dict[str, Any] = {"va": "center", "fontsize": SMALL, "color": INK}
        text = " and ".join(f"{figure:,.0f}" for figure in figures)
        ax.annotate(text, (max(figures), row), (4, 0), textcoords="offset points", **style)
    longest = max(max(rung.throughput, rung.beside_next or 0) for rung in ladder.rungs)
    end = max(SCALE * ladder.memory_limit, ROOM_FOR_LABELS * longest)
    ax.set(ylim=(len(ladder.rungs) - 0.4, -0.6), xlim=(0, end))
    ax.set_yticks(range(len(ladder.rungs)), [f"{rung.number} {rung.title}" if named else "" for rung in ladder.rungs])
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(title, fontsize=SMALL + 1, loc="left")
    shares = [percent for percent in SHARES if percent * ladder.memory_limit / 100 < 0.9 * end]
    ax.set_xticks([percent * ladder.memory_limit / 100 for percent in shares], [f"{percent} %" for percent in shares])
    ax.tick_params(axis="x", labelsize=SMALL)
    ax.set_xlabel("of what the memory allows", fontsize=SMALL)


def kernels_drawn(timeline: Timeline) -> list[Kernel]:
    """The kernels that `draw_step` shows, each from the end of all before it on, as `Timeline.in_turn` has them.

    One that has no time of its own within the step cannot be seen, and is left out.
    """
    return [k for k in timeline.in_turn if k.duration_us > 0 and k.start_us < timeline.step_us]


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
    kernels = kernels_drawn(timeline)
    for kind, colour in KIND_COLOURS.items():
        spans = [(k.start_us, k.duration_us) for k in kernels if k.kind == kind]
        ax.broken_barh(spans, (1.08, 0.84), facecolor=colour, edgecolor="none", linewidth=0, snap=False)


def _draw_part(ax: Axes, colour: str, name: str, start: float, width: float, room: tuple[float, float]) -> None:
    """A bar of the host's lane, named in the middle of its room where the name fits."""
    ax.barh([0.5], [width], 0.84, left=start, color=colour, edgecolor="none")
    points = axes_points(ax)[0] / ax.get_xlim()[1]
    if text_points(name) + APART < points * (room[1] - room[0]):
        ink = "white" if colour == COLOURS["block_tables"] else "black"
        ax.text(sum(room) / 2, 0.5, name, ha="center", va="center", fontsize=SMALL, color=ink)


def draw_legends(ax: Axes, timelines: Sequence[Timeline]) -> None:
    """What the colours of the host's parts and of the kernels in these timelines mean; the axes have nothing else."""
    parts = {PARTS[r.name]: COLOURS[PARTS[r.name]] for one in timelines for r in one.ranges if r.name in PARTS}
    host = {"host:": "none", **{PART_NAMES[part]: colour for part, colour in parts.items()}, "the rest": REST}
    there = [kind for kind in KIND_LABELS if any(k.kind == kind for one in timelines for k in one.kernels)]
    device = {"GPU:": "none", **{KIND_LABELS[kind]: KIND_COLOURS[kind] for kind in there}}
    style: dict[str, Any] = {
        "frameon": False,
        "fontsize": SMALL,
        "handlelength": 1.2,
        "columnspacing": 1.2,
        "borderaxespad": 0,
    }
    ax.set_axis_off()
    for place, colours in (("upper left", host), ("lower left", device)):
        patches = [Patch(color=colour) for colour in colours.values()]
        legend = Legend(ax, patches, list(colours), ncols=len(patches), **style | {"loc": place})
        legend.set_in_layout(False)
        ax.add_artist(legend)
