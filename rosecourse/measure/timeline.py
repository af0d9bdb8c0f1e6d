"""Timelines: what host and device do in one decode step. `profiling` takes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from .stages import touched

STEP = "rosecourse.step"  # the range around a whole step: the launch of one, and the landing of one

PARTS = {
    "roseinfer.decode_step_sessions.place": "place",  # and what is copied then
    "roseinfer.decode_step_sessions.build_block_tables": "block_tables",
    "roseinfer.decode_step_sessions.plan": "plan",
    "roseinfer.model.forward": "forward",
    "roseinfer.kv.append_token": "kv_append",
    "roseinfer.decode_step_sessions.run": "runner",
    "rosecourse.read": "read",  # the wait for tokens, and their way to the host
}

STEP_KINDS = {"inside": "inside a block", "boundary": "at a block boundary", "fork": "right after a fork"}

READ_IT = (
    "a timeline is one step, the shortest of a few that were taken in turns. Read it for what happens, and take times "
    "from runs."
)

KIND_LABELS = {
    "attention": "attention",
    "append": "KV append",
    "matrix": "matrix products",
    "copy": "copies, host and device",
    "other": "other",
}


class Range(NamedTuple):
    """A named range of the host, in microseconds from the start of the step."""

    name: str
    start_us: float
    duration_us: float


class Kernel(NamedTuple):
    """What the device did, in microseconds from the start of the step. kind: one of `KIND_LABELS`; name: shortened."""

    name: str
    kind: str
    start_us: float
    duration_us: float


class Timeline(NamedTuple):
    """One decode step as the profiler saw it, to a tenth of a microsecond.

    ranges: of the host, in the order of their starts; the first is the whole step. kernels: of the device, in the
    order of their starts; there are none where the engine runs on a CPU. plain_us: the median of the steps of this kind
    before the profiler started. A profiler that has run earlier in the process makes those slower too, so compare steps
    by TPOT. step_kind: one of `STEP_KINDS`; in a step at a block boundary every session begins a block, and in
    one right after a fork all write into a block that they share. context: the most positions that a session had in the
    cache before the step.

    Launches are asynchronous: a range of the host ends when its kernels have been launched, and they may run later,
    beside another range.
    """

    ranges: tuple[Range, ...]
    kernels: tuple[Kernel, ...]
    device: str
    plain_us: float
    step_kind: str = "inside"
    context: int = 0

    @property
    def step_us(self) -> float:
        return self.ranges[0].duration_us

    @property
    def busy_us(self) -> float:
        """Microseconds of the step in which the device was busy; kernels that run side by side count once."""
        busy = end = 0.0
        for kernel in self.kernels:
            stop = min(kernel.start_us + kernel.duration_us, self.step_us)
            busy += max(0.0, stop - max(kernel.start_us, end))
            end = max(end, stop)
        return busy

    @property
    def in_turn(self) -> tuple[Kernel, ...]:
        """The kernels, each from the end of all before it on.

        One that starts before that (lesson 071) mostly waits until then: that time is the other's. So all of them add
        up to the time that the device was busy, with what the last one does after the step.
        """
        shown, end = [], 0.0
        for kernel in self.kernels:
            stop = kernel.start_us + kernel.duration_us
            start = min(max(kernel.start_us, end), stop)
            shown.append(kernel._replace(start_us=start, duration_us=stop - start))
            end = max(end, stop)
        return tuple(shown)

    @property
    def busy_share(self) -> float:
        """The share of the step in which the device was busy."""
        return self.busy_us / self.step_us

    @property
    def parts(self) -> list[str]:
        """The parts of `PARTS` that the step has, in the order of their starts."""
        return list(dict.fromkeys(PARTS[one.name] for one in self.ranges if one.name in PARTS))

    def part_us(self, part: str) -> float:
        """Microseconds that the host spent in a part of `PARTS`, or, for `rest`, in none of them."""
        times = {one: sum(r.duration_us for r in self.ranges if PARTS.get(r.name) == one) for one in PARTS.values()}
        return times[part] if part != "rest" else self.step_us - sum(times.values())

    def document(self) -> dict[str, Any]:
        """What `of` reads, for a JSON file: times in tenths of a microsecond, each kernel's name once."""
        names = list(dict.fromkeys((kernel.kind, kernel.name) for kernel in self.kernels))
        number = {name: n for n, name in enumerate(names)}
        kernels: list[int] = []
        last = 0
        for name, kind, start_us, duration_us in self.kernels:
            start = round(10 * start_us)
            kernels += [number[kind, name], start - last, round(10 * duration_us)]
            last = start
        ranges = [[r.name, round(10 * r.start_us), round(10 * r.duration_us)] for r in self.ranges]
        return {
            "device": self.device,
            "plain": round(10 * self.plain_us),
            "step_kind": self.step_kind,
            "context": self.context,
            "ranges": ranges,
            "kernel_names": [list(name) for name in names],
            "kernels": kernels,
        }

    @classmethod
    def of(cls, document: Any) -> Timeline:
        """The timeline of a `document`. Raises `ValueError` for one that cannot be."""
        try:
            ranges = tuple(Range(name, _us(start), _us(length)) for name, start, length in document["ranges"])
            kernels, kind, context = tuple(_kernels(document)), document["step_kind"], document["context"]
            timeline = cls(ranges, kernels, document["device"], _us(document["plain"]), kind, context)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("a timeline is not of the form that is written") from error
        names = (timeline.device, *(one.name for one in ranges + timeline.kernels))
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a name in a timeline is no text")
        if kind not in STEP_KINDS or type(context) is not int or context < 1:
            raise ValueError(f"a timeline of a step {kind!r:.20}, with {context!r:.20} positions")
        if not ranges or ranges[0][:2] != (STEP, 0) or min(timeline.step_us, timeline.plain_us) <= 0:
            raise ValueError("a timeline without a step")
        if any(one.start_us + one.duration_us > timeline.step_us + 0.25 for one in ranges):
            raise ValueError("a range of a timeline ends after its step")
        return timeline


def untouched_sentence(timelines: Mapping[str, Timeline], changed: Collection[str]) -> str:
    """What two timelines, `before` and `after`, say of the parts that a lesson leaves alone.

    changed: the parts that it replaces, as in `Lesson.changes`.
    """
    sides = timelines["before"], timelines["after"]
    found = touched(sides[0].parts, sides[1].parts, changed)
    untouched = {part for side in sides for part in (*side.parts, "rest")} - found
    if not untouched:
        return "The lesson leaves no range of the host alone: " + READ_IT
    before, after = (sum(side.part_us(part) for part in untouched) / 1e3 for side in sides)
    return (
        f"What the lesson leaves alone took the host {before:.2f} ms in the step before and {after:.2f} ms in the one "
        f"after: {READ_IT}"
    )


def _us(tenths: Any) -> float:
    if type(tenths) is not int or tenths < 0:
        raise ValueError(f"a time in a timeline is {tenths!r:.20}")
    return tenths / 10


def _kernels(document: dict[str, Any]) -> Iterator[Kernel]:
    """The kernels of a timeline's document."""
    numbers, start = document["kernels"], 0
    for name, gap, length in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        _us(name), _us(gap)  # whole numbers, not negative
        kind, text = document["kernel_names"][name]
        if kind not in KIND_LABELS:
            raise ValueError(f"a kernel of the kind {kind!r:.20}")
        start += gap
        yield Kernel(text, kind, _us(start), _us(length))
