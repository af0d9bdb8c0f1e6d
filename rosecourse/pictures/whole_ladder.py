"""The whole ladder in one picture: what every rung makes of a workload, and a decode step of the first and the last."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from ..measure.anatomy import PART_NAMES
from ..measure.timeline import KIND_LABELS, PARTS, Kernel, Timeline
from ..records.whole_ladder import WholeLadder
from .colours import AFTER, COLOURS, INK, KIND_COLOURS
from .labels import BEHIND, SMALL, colour_legend
from .stacked import name_rows
from .time_axis import Bar, draw_lanes
from .timeline import device_bars, host_bars, kinds_in

REST = "#DDDDDD"  # of a step: light, so that the parts stand out
REST_NAME = "wait for the tokens, and hand them out"
AGAIN = "#7FACC9"  # the lighter bar of a rung that was recorded twice
ROW = 0.72  # the height of its bars
ROOM_FOR_LABELS = 1.62  # times the longest bar
SCALE = 0.7  # of the limit: where the scale ends, the same in all ladders, so that their bars can be compared


def draw_ladder(ax: Axes, ladder: WholeLadder, title: str, named: bool = True) -> None:
    """A bar for each rung, the first lesson on top: tokens/s above, below the same as a share of the memory's limit.

    A rung that was recorded twice, beside the one before it and beside the one after it, has two bars of half the
    height. The scale ends at `SCALE`, or further out where a bar needs it. named: whether the rows are labelled with
    their lessons. Figures in which a row has 0.25 inches suit it.
    """
    name_rows(ax, [f"{rung.number} {rung.title}" if named else "" for rung in ladder.rungs])
    longest = 0.0
    for row, rung in enumerate(ladder.rungs):
        figures = [one for one in (rung.throughput, rung.beside_next) if one is not None]
        height = ROW / len(figures)
        places = [row + height * (place - (len(figures) - 1) / 2) for place in range(len(figures))]
        ax.barh(places, figures, height, color=[AFTER["color"], AGAIN][: len(figures)])
        text = " and ".join(f"{figure:,.0f}" for figure in figures)
        ax.annotate(text, (max(figures), row), (4, 0), color=INK, **BEHIND)
        longest = max(longest, *figures)
    end = max(SCALE * ladder.memory_limit, ROOM_FOR_LABELS * longest)
    shares = [percent for percent in range(0, 101, 10) if percent * ladder.memory_limit / 100 < 0.9 * end]
    ax.set_xticks([percent * ladder.memory_limit / 100 for percent in shares], [f"{percent} %" for percent in shares])
    ax.set_xlim(0, end)
    ax.spines["left"].set_visible(True)
    ax.set_title(title, fontsize=SMALL + 1, loc="left")
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
    host, step_us = host_bars(timeline), timeline.step_us
    end = max((bar.start + bar.length for bar in host), default=0.0)
    rest = [Bar(0, step_us, REST), Bar(end, step_us - end, REST, REST_NAME)]
    lanes = {"host": [*rest, *host], "GPU": device_bars(kernels_drawn(timeline))}
    draw_lanes(ax, {"": lanes}, "", "")
    ax.set(xlim=(0, step_us), xticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=SMALL + 1, loc="left")


def draw_legends(ax: Axes, timelines: Sequence[Timeline]) -> None:
    """What the colours of the host's parts and of the kernels in these timelines mean; the axes have nothing else."""
    parts = {PARTS[r.name] for one in timelines for r in one.ranges if r.name in PARTS}
    host = {"host:": "none", **{PART_NAMES[p]: COLOURS[p] for p in PART_NAMES if p in parts}, "the rest": REST}
    device = {"GPU:": "none", **{KIND_LABELS[kind]: KIND_COLOURS[kind] for kind in kinds_in(timelines)}}
    ax.set_axis_off()
    for place, colours in (("upper left", host), ("lower left", device)):
        legend = colour_legend(
            ax,
            colours,
            ncols=len(colours),
            handlelength=1.2,
            loc=place,
            bbox_to_anchor=(0, 0, 1, 1),
            bbox_transform=ax.transAxes,
        )
        legend.set_in_layout(False)
