"""Timelines: what host and device do in one decode step, and the device in whole replayed ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from ..measure.anatomy import PART_NAMES
from ..measure.timeline import KIND_LABELS, PARTS, STEP_KINDS, Kernel, Timeline
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
            "host": [Bar(0, one.step_us / 1e3, COLOURS["rest"]), *host_bars(one, 1e3)],
            "device": device_bars(one.in_turn, 1e3),
        }
        for name, one in timelines.items()
    }
    draw_lanes(ax, sides, title, "ms since the start of the step, with the profiler on")
    colour_legend(ax, _parts(list(timelines.values())), title="Host, time in")
    if kinds := _kinds(list(timelines.values())):
        colour_legend(ax, kinds, 0.45, title="Device, time (and number) of kernels and copies")


def draw_replays(ax: Axes, steps: Mapping[str, Timeline], title: str) -> None:
    """Each step's kernels in turn, from the start of the first one to that of the next step; one scale.

    steps: by name, as `replayed_step` makes them. Figures of 8.2 x 3.5 inches with `layout="constrained"` suit it.
    """
    sides = {
        _replay_headline(name, step): {"": [Bar(0, step.step_us, WAITS), *device_bars(step.in_turn)]}
        for name, step in steps.items()
    }
    draw_lanes(ax, sides, title, "µs since the start of the step, with the profiler on")
    kinds = kinds_in(steps.values())
    colour_legend(ax, {KIND_LABELS[kind]: KIND_COLOURS[kind] for kind in kinds}, ncols=len(kinds))


def _replay_headline(name: str, step: Timeline) -> str:
    """The time under the profiler and without it, how much of it nothing runs, and the longest matrix product."""
    idle = step.step_us - step.busy_us
    took = f"{name}: {step.step_us:.0f} µs with the profiler ({step.plain_us:.0f} without), {len(step.kernels)} kernels"
    waits = f"{took} and copies\nnothing runs for {idle:.0f} µs of it, {idle / step.step_us:.0%}"
    products = [kernel.duration_us for kernel in step.in_turn if kernel.kind == "matrix"]
    return f"{waits}; the product with the vocabulary takes {max(products):.0f} µs" if products else waits


def host_bars(timeline: Timeline, unit_us: float = 1) -> list[Bar]:
    """A bar for each range of a part, with the name of the part."""
    ranges = [(PARTS[one.name], one) for one in timeline.ranges if one.name in PARTS]
    return [Bar(r.start_us / unit_us, r.duration_us / unit_us, COLOURS[p], PART_NAMES[p]) for p, r in ranges]


def device_bars(kernels: Iterable[Kernel], unit_us: float = 1) -> list[Bar]:
    """A bar for each kernel, in the colour of its kind."""
    return [Bar(k.start_us / unit_us, k.duration_us / unit_us, KIND_COLOURS[k.kind]) for k in kernels]


def kinds_in(timelines: Iterable[Timeline]) -> list[str]:
    """The kinds of the kernels in these timelines, in the order of `KIND_LABELS`."""
    there = {kernel.kind for one in timelines for kernel in one.kernels}
    return [kind for kind in KIND_LABELS if kind in there]


def _headline(name: str, timeline: Timeline, requests: int) -> str:
    """Which step of how many requests it is, how long it took, and how busy the device was."""
    batch = f"{requests:,} request{'s' * (requests != 1)}, {timeline.context:,} tokens in the cache"
    step = f"{STEP_KINDS[timeline.step_kind]}; {batch}"
    length = f"{timeline.step_us / 1e3:.2f} ms with the profiler"
    if not timeline.kernels:
        return f"{name} ({step}): {length}, {timeline.device}"
    busy = f"device busy {timeline.busy_us / 1e3:.2f} ms ({timeline.busy_share:.0%})"
    return f"{name} ({step}): {length}\n{busy} in {len(timeline.kernels):,} kernels and copies"


def _parts(timelines: Sequence[Timeline]) -> dict[str, str]:
    """The host's parts, each with its time at every moment."""
    there = {"rest"}.union(*(one.parts for one in timelines))
    times = {p: _arrow(f"{one.part_us(p) / 1e3:.2f}" for one in timelines) for p in PART_NAMES if p in there}
    return {f"{PART_NAMES[part]}: {told} ms": COLOURS[part] for part, told in times.items()}


def _kinds(timelines: Sequence[Timeline]) -> dict[str, str]:
    """The kinds of kernels, each with its time and its number at every moment."""

    def told(kind: str) -> Iterator[str]:
        mine = [[k.duration_us for k in one.in_turn if k.kind == kind] for one in timelines]
        yield _arrow(f"{sum(durations) / 1e3:.2f}" for durations in mine)
        yield _arrow(f"{len(durations):,}" for durations in mine)

    return {"{}: {} ms ({})".format(KIND_LABELS[k], *told(k)): KIND_COLOURS[k] for k in kinds_in(timelines)}


def _arrow(values: Iterable[str]) -> str:
    return " → ".join(values)
