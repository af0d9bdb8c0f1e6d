"""Timelines: what host and device do in one decode step (`profiling` takes them), stored small, and drawn.

`python -m rosecourse.record` writes data/results/<gpu>/<lesson>.timeline.json (`archive`): with the keys of a recorded
file that say where it comes from (`recorded_runs`), and `before` (null for the first lesson) and `after`, each what
`Timeline.document` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from .archive import RESULTS, find, read, sealed
from .lessons import lesson as lesson_of
from .plots import COLOURS, INK, LABELS

FORMAT = 1
UNITS = "tenths of a microsecond; kernels: number in kernel_names, start after the start of the one before, duration"
STEP = "rosecourse.step"  # the range around a whole step: decode_step_sessions and take_tokens
PARTS = {
    "roseinfer.decode_step_sessions.build_block_tables": "block_tables",
    "roseinfer.model.forward": "forward",
    "roseinfer.kv.append_token": "kv_append",
}

# Kinds of kernels; all that the append launches is append.
KIND_COLOURS = {
    "attention": "#009E73",
    "append": COLOURS["kv_append"],
    "matrix": "#000000",
    "copy": "#56B4E9",
    "other": "#999999",
}
KIND_LABELS = {
    "attention": "attention",
    "append": "KV append",
    "matrix": "matrix products",
    "copy": "copies, host and device",
    "other": "other",
}


# -- a timeline ---------------------------------------------------------------------------------------------------


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
    order of their starts, none where the engine runs on a CPU. plain_us: what the steps before took at the median; a
    profiler that has run before in the process makes them slower, too, so compare steps by TPOT instead. Launches are
    asynchronous: a range of the host ends when its kernels have been launched, and they may run later, beside another
    range.
    """

    ranges: tuple[Range, ...]
    kernels: tuple[Kernel, ...]
    device: str
    plain_us: float

    @property
    def step_us(self) -> float:
        return self.ranges[0].duration_us

    @property
    def busy_share(self) -> float:
        """The share of the step in which the device did something; what runs side by side counts once."""
        busy = end = 0.0
        for kernel in self.kernels:
            stop = min(kernel.start_us + kernel.duration_us, self.step_us)
            busy += max(0.0, stop - max(kernel.start_us, end))
            end = max(end, stop)
        return busy / self.step_us

    def part_us(self, part: str) -> float:
        """Microseconds of the host in a part of `PARTS`, or in `rest`: all that is in none of them."""
        times = {one: sum(r.duration_us for r in self.ranges if PARTS.get(r.name) == one) for one in PARTS.values()}
        return times[part] if part != "rest" else self.step_us - sum(times.values())

    def document(self) -> dict[str, Any]:
        """What `of` reads, for a JSON file: times in `UNITS`, each name once."""
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
            "ranges": ranges,
            "kernel_names": [list(name) for name in names],
            "kernels": kernels,
        }

    @classmethod
    def of(cls, document: Any) -> Timeline:
        """The timeline of a `document`. Raises `ValueError` for one that cannot be."""
        try:
            ranges = tuple(Range(name, _us(start), _us(length)) for name, start, length in document["ranges"])
            found = cls(ranges, tuple(_kernels(document)), document["device"], _us(document["plain"]))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("a timeline is not of the form that is written") from error
        if not all(isinstance(name, str) for name in (found.device, *(one.name for one in ranges + found.kernels))):
            raise ValueError("a name in a timeline is no text")
        if not ranges or ranges[0][:2] != (STEP, 0) or min(found.step_us, found.plain_us) <= 0:
            raise ValueError("a timeline without a step")
        if any(one.start_us + one.duration_us > found.step_us + 0.25 for one in ranges):
            raise ValueError("a range of a timeline ends after its step")
        return found


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


# -- taking one ---------------------------------------------------------------------------------------------------


# -- files --------------------------------------------------------------------------------------------------------


def path_of(folder: Path, number: str) -> Path:
    """The file of a lesson in the folder of a GPU."""
    return folder / f"{number}.timeline.json"


def sealed_document(head: Mapping[str, Any], timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """What a file has: where it comes from, the timelines `before` (if there is one) and `after`, and a checksum."""
    sides = {side: timelines[side].document() if side in timelines else None for side in ("before", "after")}
    return sealed({**head, "format": FORMAT, "units": UNITS, **sides})


def load(path: Path, lesson: str) -> dict[str, Any]:
    """A file's document, checked. Raises `RosecourseError` for one that is damaged, of another lesson or format."""

    def parse(document: dict[str, Any]) -> dict[str, Any]:
        timelines_of(document)
        return document

    return read(path, "timeline", lesson, FORMAT, parse)


def timelines_of(document: Mapping[str, Any]) -> dict[str, Timeline]:
    """The timelines of a file, `before` (not for the first lesson) and `after`. Raises `ValueError`."""
    sides = ["before", "after"] if lesson_of(document["lesson"]).changes else ["after"]
    return {side: Timeline.of(document.get(side)) for side in sides}


def recorded(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> dict[str, Timeline] | None:
    """The recorded timelines of a lesson, `before` and `after` (the first lesson has no before), None without a file.

    gpu: a name such as `NVIDIA H200`, or the folder's, `nvidia-h200`; None is the course's own, else the first found.
    Raises `LessonError` for a lesson that is not on the ladder, `RosecourseError` for a file that is damaged.
    """
    number = lesson_of(lesson).number
    path = find(path_of(Path(), number).name, gpu, folder)
    return None if path is None else timelines_of(load(path, number))


# -- the picture --------------------------------------------------------------------------------------------------

ROOM = 1.0  # lanes: height of the line of text above them, of the host's, of the device's, and the gap between moments
HOST, DEVICE, GAP = 1.1, 0.8, 0.5
MOMENT = ROOM + HOST + DEVICE + GAP


def draw(ax: Axes, timelines: Mapping[str, Timeline], title: str) -> None:
    """For each moment, such as before and after, the host's ranges above and the device's kernels below; one scale.

    Figures of 9 x 4.5 inches with `layout="constrained"` suit it. A range of the host ends when its kernels have been
    launched: they may run later, beside another range. `rest` is all of the step that is in no other part: inputs,
    sampling, waiting for the tokens.
    """
    longest = max(one.step_us for one in timelines.values()) / 1e3
    ax.set(title=title, xlabel="ms since the start of the step, with the profiler on", xlim=(0, 1.01 * longest))
    ticks = {}
    for number, (name, timeline) in enumerate(timelines.items()):
        top = number * MOMENT
        ax.text(0, top + 0.5 * ROOM, _headline(name, timeline), va="center", color=INK, fontsize=9.5)
        _draw_host(ax, timeline, top + ROOM, longest)
        _draw_device(ax, timeline, top + ROOM + HOST)
        ticks |= {top + ROOM + HOST / 2: "host", top + ROOM + HOST + DEVICE / 2: "device"}
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set_ylim(len(timelines) * MOMENT - GAP, 0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    _legends(ax, list(timelines.values()))


def _headline(name: str, timeline: Timeline) -> str:
    length = f"{name}: {timeline.step_us / 1e3:.2f} ms with the profiler"
    if not timeline.kernels:
        return f"{length}, {timeline.device}: no kernels"
    return f"{length}, {len(timeline.kernels):,} kernels, device busy {100 * timeline.busy_share:.0f} % of the step"


def _draw_host(ax: Axes, timeline: Timeline, top: float, longest: float) -> None:
    """A bar for the whole step, in the colour of the rest, and over it one for each range of a part.

    A bar says its name where it has room for it: about 80 letters go into the width of the axes.
    """
    bars = [("rest", 0.0, timeline.step_us)]
    bars += [(PARTS[r.name], r.start_us, r.duration_us) for r in timeline.ranges if r.name in PARTS]
    for part, start, width in bars:
        ax.barh([top + HOST / 2], [width / 1e3], HOST * 0.85, left=start / 1e3, color=COLOURS[part], edgecolor="none")
        text = f"{LABELS[part]} {width / 1e3:.2f} ms"
        if part != "rest" and width / 1e3 > longest * len(text) / 80:
            ink = "white" if part == "block_tables" else "black"
            ax.text((start + width / 2) / 1e3, top + HOST / 2, text, ha="center", va="center", color=ink, fontsize=9)


def _draw_device(ax: Axes, timeline: Timeline, top: float) -> None:
    """A thin bar for each kernel; a faint line for the time in which there is none."""
    ax.hlines(top + DEVICE / 2, 0, timeline.step_us / 1e3, color="#CCCCCC", linewidth=0.8, zorder=0)
    for kind, colour in KIND_COLOURS.items():
        bars = [(k.start_us / 1e3, k.duration_us / 1e3) for k in timeline.kernels if k.kind == kind]
        if bars:
            place = (top + 0.1 * DEVICE, 0.8 * DEVICE)
            ax.broken_barh(bars, place, facecolor=colour, edgecolor="none", linewidth=0, snap=False, label=kind)


def _legends(ax: Axes, timelines: Sequence[Timeline]) -> None:
    """The parts of the host on the left, the kinds of kernels on the right, each with its time at every moment."""

    def arrow(values: Iterable[str]) -> str:
        return " → ".join(values)

    def entry(kind: str) -> str:
        mine = [[k.duration_us for k in one.kernels if k.kind == kind] for one in timelines]
        times = arrow(f"{sum(found) / 1e3:.2f}" for found in mine)
        return f"{KIND_LABELS[kind]}: {times} ms ({arrow(f'{len(found):,}' for found in mine)})"

    style = {"frameon": False, "fontsize": 9, "title_fontsize": 9, "alignment": "left", "borderaxespad": 0}
    parts = {part: arrow(f"{one.part_us(part) / 1e3:.2f}" for one in timelines) for part in COLOURS}
    host = [Patch(color=COLOURS[part], label=f"{LABELS[part]}: {times} ms") for part, times in parts.items()]
    left = ax.legend(handles=host, title="Host, time in", loc="upper left", bbox_to_anchor=(0, -0.2), **style)
    kinds = [kind for kind in KIND_LABELS if any(k.kind == kind for one in timelines for k in one.kernels)]
    if kinds:
        ax.add_artist(left)
        device = [Patch(color=KIND_COLOURS[kind], label=entry(kind)) for kind in kinds]
        title = "Device, time (and number) of kernels and copies"
        ax.legend(handles=device, title=title, loc="upper left", bbox_to_anchor=(0.45, -0.2), **style)
