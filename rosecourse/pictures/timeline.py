"""The picture of a timeline: what host and device do in one decode step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..measure.anatomy import PART_NAMES
from ..measure.timeline import KIND_LABELS, PARTS, STEP_KINDS, Timeline
from .colours import COLOURS, INK, KIND_COLOURS
from .labels import APART, SMALL, axes_points, text_points

# Heights: the two lines of text above the lanes, the host's lane, the device's, and the gap between two moments.
ROOM, HOST, DEVICE, GAP = 1.2, 1.1, 0.8, 0.5
MOMENT = ROOM + HOST + DEVICE + GAP


def draw_timeline(ax: Axes, timelines: Mapping[str, Timeline], requests: int, title: str) -> None:
    """For each moment, such as before and after, the host's ranges above and the device's kernels below; one scale.

    requests: how many are in the step's batch. Figures of 8.2 x 4.5 inches with `layout="constrained"` suit it. A range
    of the host ends when its kernels have been launched: they may run later, beside another range. `rest` is whatever
    is in no other part: inputs, sampling, waiting for the tokens.
    """
    longest = max(one.step_us for one in timelines.values()) / 1e3
    ax.set(title=title, xlabel="ms since the start of the step, with the profiler on", xlim=(0, 1.01 * longest))
    ticks: dict[float, str] = {}
    for top in (number * MOMENT + ROOM for number in range(len(timelines))):
        ticks |= {top + HOST / 2: "host", top + HOST + DEVICE / 2: "device"}
    ax.set_yticks(list(ticks), list(ticks.values()))
    points = axes_points(ax)[0] / ax.get_xlim()[1]
    for number, (name, timeline) in enumerate(timelines.items()):
        top = number * MOMENT
        ax.text(0, top + 0.5 * ROOM, _headline(name, timeline, requests), va="center", color=INK, fontsize=SMALL)
        _draw_host(ax, timeline, top + ROOM, points)
        _draw_device(ax, timeline, top + ROOM + HOST)
    ax.set_ylim(len(timelines) * MOMENT - GAP, 0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    _legends(ax, list(timelines.values()))


def _headline(name: str, timeline: Timeline, requests: int) -> str:
    """Which step of how many requests it is, how long it took, and how busy the device was."""
    batch = f"{requests:,} request{'s' * (requests != 1)}, {timeline.context:,} tokens in the cache"
    step = f"{STEP_KINDS[timeline.step_kind]}; {batch}"
    length = f"{timeline.step_us / 1e3:.2f} ms with the profiler"
    if not timeline.kernels:
        return f"{name} ({step}): {length}, {timeline.device}"
    busy = f"device busy {timeline.busy_us / 1e3:.2f} ms ({timeline.busy_share:.0%})"
    return f"{name} ({step}): {length}\n{busy} in {len(timeline.kernels):,} kernels and copies"


def _draw_host(ax: Axes, timeline: Timeline, top: float, points: float) -> None:
    """A bar for the whole step, in the colour of the rest, and over it one for each range of a part.

    A bar is labelled where the text fits on one line or two. points: of a millisecond.
    """
    bars = [("rest", 0.0, timeline.step_us)]
    bars += [(PARTS[r.name], r.start_us, r.duration_us) for r in timeline.ranges if r.name in PARTS]
    for part, start, width in bars:
        ax.barh([top + HOST / 2], [width / 1e3], HOST * 0.85, left=start / 1e3, color=COLOURS[part], edgecolor="none")
        texts = [f"{PART_NAMES[part]}{space}{width / 1e3:.2f} ms" for space in " \n"]
        fitting = [text for text in texts if text_points(text) + APART < points * width / 1e3]
        if part != "rest" and fitting:
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "linespacing": 1.1}
            ink = "white" if part == "block_tables" else "black"
            ax.text((start + width / 2) / 1e3, top + HOST / 2, fitting[0], color=ink, **style)


def _draw_device(ax: Axes, timeline: Timeline, top: float) -> None:
    """A thin bar for each kernel, from the end of those before it on, and a faint line where there is none."""
    ax.hlines(top + DEVICE / 2, 0, timeline.step_us / 1e3, color="#CCCCCC", linewidth=0.8, zorder=0)
    for kind, colour in KIND_COLOURS.items():
        bars = [(k.start_us / 1e3, k.duration_us / 1e3) for k in timeline.in_turn if k.kind == kind]
        if bars:
            place = (top + 0.1 * DEVICE, 0.8 * DEVICE)
            ax.broken_barh(bars, place, facecolor=colour, edgecolor="none", linewidth=0, snap=False, label=kind)


def _legends(ax: Axes, timelines: Sequence[Timeline]) -> None:
    """The parts of the host on the left, the kinds of kernels on the right, each with its time at every moment."""

    def arrow(values: Iterable[str]) -> str:
        return " → ".join(values)

    def entry(kind: str) -> str:
        mine = [[k.duration_us for k in one.in_turn if k.kind == kind] for one in timelines]
        times = arrow(f"{sum(durations) / 1e3:.2f}" for durations in mine)
        return f"{KIND_LABELS[kind]}: {times} ms ({arrow(f'{len(durations):,}' for durations in mine)})"

    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "title_fontsize": SMALL}
    style |= {"alignment": "left", "borderaxespad": 0}
    there = {"rest"}.union(*(one.parts for one in timelines))
    parts = {part: arrow(f"{one.part_us(part) / 1e3:.2f}" for one in timelines) for part in PART_NAMES if part in there}
    host = [Patch(color=COLOURS[part], label=f"{PART_NAMES[part]}: {times} ms") for part, times in parts.items()]
    left = ax.legend(handles=host, title="Host, time in", loc="upper left", bbox_to_anchor=(0, -0.2), **style)
    kinds = [kind for kind in KIND_LABELS if any(k.kind == kind for one in timelines for k in one.kernels)]
    if kinds:
        ax.add_artist(left)
        device = [Patch(color=KIND_COLOURS[kind], label=entry(kind)) for kind in kinds]
        title = "Device, time (and number) of kernels and copies"
        ax.legend(handles=device, title=title, loc="upper left", bbox_to_anchor=(0.45, -0.2), **style)
