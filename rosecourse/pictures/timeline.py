"""Timelines: what host and device do in one decode step, and the device in whole replayed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from ..measure.anatomy import PART_NAMES
from ..measure.timeline import KIND_LABELS, STEP_KINDS, Timeline
from .colours import COLOURS, KIND_COLOURS
from .labels import colour_legend
from .time_axis import WAITS, Bar, draw_lanes


def draw_timeline(ax: Axes, timelines: Mapping[str, Timeline], requests: int, title: str) -> None:
    """For each moment, such as before and after, the host's ranges above and the device's kernels below; one scale.

    requests: how many are in the step's batch. Figures of 8.2 x 4.5 inches with `layout="constrained"` suit it. A range
    of the host ends when its kernels have been launched: they may run later, beside another range. `rest` is whatever
    is in no other part: inputs, sampling, waiting for the tokens.
    """
    sides = {
        _headline(name, one, requests): {
            "host": [Bar(0, one.step_us / 1e3, COLOURS["rest"]), *_host_bars(one)],
            "device": _device_bars(one.kernels),
        }
        for name, one in timelines.items()
    }
    draw_lanes(ax, sides, title, "ms since the start of the step, with the profiler on")
    every = list(timelines.values())
    parts = {"rest"}.union(*(one.ranges.part.dropna() for one in every))
    times = {p: _arrow(f"{one.part_us(p) / 1e3:.2f}" for one in every) for p in PART_NAMES if p in parts}
    host = {f"{PART_NAMES[part]}: {told} ms": COLOURS[part] for part, told in times.items()}
    colour_legend(ax, host, title="Host, time in")
    device = {}
    for kind in _kinds(every):
        own = [one.kernels[one.kernels.kind == kind].own_us for one in every]
        took, ran = _arrow(f"{one.sum() / 1e3:.2f}" for one in own), _arrow(f"{len(one):,}" for one in own)
        device[f"{KIND_LABELS[kind]}: {took} ms ({ran})"] = KIND_COLOURS[kind]
    if device:
        colour_legend(ax, device, 0.45, title="Device, time (and number) of kernels and copies")


def draw_replays(ax: Axes, steps: Mapping[str, Timeline], title: str) -> None:
    """Each step's kernels in turn, from the start of the first one to that of the next step; one scale.

    steps: by name, as `replayed_step` makes them. Figures of 8.2 x 3.5 inches with `layout="constrained"` suit it.
    """
    sides = {}
    for name, step in steps.items():
        idle = step.step_us - step.busy_us
        took = f"{name}: {step.step_us:.0f} µs with the profiler ({step.plain_us:.0f} without)"
        heading = (
            f"{took}, {len(step.kernels)} kernels and copies\n"
            f"nothing runs for {idle:.0f} µs of it, {idle / step.step_us:.0%}"
        )
        sides[heading] = {"": [Bar(0, step.step_us / 1e3, WAITS), *_device_bars(step.kernels)]}
    draw_lanes(ax, sides, title, "ms since the start of the step, with the profiler on")
    kinds = _kinds(steps.values())
    colour_legend(ax, {KIND_LABELS[kind]: KIND_COLOURS[kind] for kind in kinds}, ncols=len(kinds))


def _host_bars(timeline: Timeline) -> list[Bar]:
    """A bar in ms for each range of a part, with the name of the part."""
    ranges = timeline.ranges.dropna(subset="part").itertuples()
    return [Bar(r.start_us / 1e3, r.us / 1e3, COLOURS[r.part], PART_NAMES[r.part]) for r in ranges]


def _device_bars(kernels: pd.DataFrame) -> list[Bar]:
    """A bar in ms for each kernel, from the end of all before it on, in the colour of its kind."""
    shown = kernels.itertuples()
    return [Bar((k.end_us - k.own_us) / 1e3, k.own_us / 1e3, KIND_COLOURS[k.kind]) for k in shown]


def _kinds(timelines: Iterable[Timeline]) -> list[str]:
    """The kinds of the kernels in these timelines, in the order of `KIND_LABELS`."""
    there = {kind for one in timelines for kind in one.kernels.kind}
    return [kind for kind in KIND_LABELS if kind in there]


def _headline(name: str, timeline: Timeline, requests: int) -> str:
    """Which step of how many requests it is, how long it took, and how busy the device was."""
    batch = f"{requests:,} request{'s' * (requests != 1)}, {timeline.context:,} tokens in the cache"
    length = f"{timeline.step_us / 1e3:.2f} ms with the profiler"
    busy = f"device busy {timeline.busy_us / 1e3:.2f} ms ({timeline.busy_share:.0%})"
    ran = f"\n{busy} in {len(timeline.kernels):,} kernels and copies" if len(timeline.kernels) else ""
    return f"{name} ({STEP_KINDS[timeline.step_kind]}; {batch}): {length}{ran}"


def _arrow(values: Iterable[str]) -> str:
    return " → ".join(values)
