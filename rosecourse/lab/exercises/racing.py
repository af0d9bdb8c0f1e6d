"""The race: the learner's part on the ladder, between the lesson's before and its after.

Equal tokens come first: for a part that gives others, or that fails, nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pandas as pd
import torch
from matplotlib.axes import Axes

from ...checks import require, told
from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...desk.noting import note
from ...engine.engine import InferenceEngine
from ...errors import ConfigError, LessonError, RosecourseError
from ...lessons import LESSONS, Lesson, lesson
from ...measure.compare import Ladder, compare_ladder
from ...measure.stats import FEWEST_PAIRS, Ratio, ratio
from ...measure.workload import Workload
from ...models.load import load_model
from ...models.shape import Model
from ...pages.html import WRONG, headline, paragraph
from ...pictures.drawing import new_axes
from ...pictures.plots import race_runs
from ..course import COURSES, course_of
from ..course.form import Course, Track
from .count_race import CountRace
from .launch_race import LaunchRace, launches_of
from .operation_race import KernelRace, OperationRace, operations_of
from .order_race import OrderRace, asks_of
from .wait_race import WaitRace, completions_served, waits_of
from .wake_race import WakeRace, completions_read, wakes_of

COUNTED: dict[str, tuple[type[CountRace], Callable[[DecodeParts, Model], Any]]] = {  # by a track's `counted`
    "launches": (LaunchRace, launches_of),
    "waits": (WaitRace, waits_of),
    "wakes": (WakeRace, wakes_of),
    "operations": (OperationRace, operations_of),
    "kernels": (KernelRace, operations_of),
    "late asks": (OrderRace, asks_of),
}
NEVER_TIMED = ("wakes", "late asks")  # time says nothing of them on a GPU either
WHOLE_RUNS = Track()
Raced = TypeVar("Raced", "Race", CountRace)
DIFFERS = ("faster", "slower")  # verdicts of a ratio
THAN_THE_COURSES = "than the course's"
NOISY = 2.0  # a spread of runs of the same work that is larger than this is not the work's own
OTHER_WORK = (
    "runs of one part differ by a factor of {:.1f}. Other work on the machine is the usual reason: race again when it "
    "is idle."
)


@dataclass(frozen=True, repr=False)
class Race:
    """What came of a race. ladder: before, yours, the course's; None if there was none, and `trouble` says why.

    track: what was timed.
    """

    number: str
    part: str
    ladder: Ladder | None
    trouble: str = ""
    track: Track = WHOLE_RUNS

    @property
    def speedups(self) -> tuple[Ratio, Ratio]:
        """How many times as fast as before: yours, and the course's."""
        if self.ladder is None:
            raise ConfigError("nothing was timed: there are no figures")
        _, yours, course = self.ladder.ratios(self.track.metric)
        return yours, course

    def against_before(self) -> str:
        """How many times as fast as before yours is, whether that is a difference at all, and whether it is noisy."""
        yours, _ = self.speedups
        said = yours.shown(2) if yours.verdict in DIFFERS else f"{yours.shown(2)}, no difference"
        return f"{said}, noisy" if self.is_noisy else said

    @property
    def spread(self) -> float:
        """How many times as long as its quickest run the slowest run of one of the three took, where that is most."""
        if self.ladder is None:
            raise ConfigError("nothing was timed: there are no figures")
        return max(max(runs) / min(runs) for runs in (rung.each(self.track.metric) for rung in self.ladder.rungs))

    @property
    def is_noisy(self) -> bool:
        """Whether the runs differ by more than their own work does. Of few runs nothing is said at all."""
        return self.ladder is not None and self.ladder.conditions.rounds >= FEWEST_PAIRS and self.spread > NOISY

    def table(self) -> pd.DataFrame:
        """One row each for before, yours and the course's; empty if nothing was timed."""
        if self.ladder is None:
            return pd.DataFrame()
        table = self.ladder.table(self.track.metric)
        return table.rename(columns={"ratio to the first": "ratio to before"})

    def draw(self, ax: Axes) -> None:
        """The runs of the three, with what may be said of them; nothing, not even the axes, where nothing was timed."""
        if self.ladder is None:
            ax.set_axis_off()
            return
        title = f"Lesson {self.number}: {self.part} on the ladder"
        race_runs(ax, self.ladder, self.track.metric, f"{title}\n{self.track.timed}")

    def show(self) -> None:
        """Show the picture in a notebook; nothing where nothing was timed."""
        if self.ladder is not None:
            with new_axes(3.8) as ax:
                self.draw(ax)

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    __repr__ = __str__  # a notebook keeps this beside the HTML: not every moment of every run

    def _repr_html_(self) -> str:
        if self.ladder is None:
            return headline(f"{WRONG} {self.trouble}")
        table = self.table().round(3).to_html(formatters={"throughput (tokens/s)": "{:,.0f}".format})
        return table + "".join(map(paragraph, self.sentences()))

    def sentences(self) -> list[str]:
        """What may be said, and no more; with the provenance."""
        if self.ladder is None:
            return [self.trouble]
        yours, course = self.speedups
        _, mine, theirs = self.ladder.rungs
        beside = ratio(theirs.each(self.track.metric), mine.each(self.track.metric))
        rounds = self.ladder.conditions.rounds
        return [
            f"What is timed: {self.track.timed}.",
            f"Your part against before: {_claim(yours, 'than before', rounds)}.",
            f"The course's part against before: {_claim(course, 'than before', rounds)}.",
            f"Your part against the course's: {_claim(beside, THAN_THE_COURSES, rounds)}.",
            *([f"Noisy: {OTHER_WORK.format(self.spread)}"] if self.is_noisy else []),
            f"{self.ladder.provenance}.",
        ]


def _claim(times: Ratio, than: str, rounds: int) -> str:
    if rounds < FEWEST_PAIRS:
        return f"{times}, and {rounds} rounds are too few to tell: take {FEWEST_PAIRS} or more"
    verdict = f"{times.verdict} {than}" if times.verdict in DIFFERS else times.verdict
    return f"{times}, {verdict}"


def race(
    part: Callable[..., Any], number: str, model: Model | None = None, rounds: int | None = None
) -> Race | CountRace:
    """Time a learner's part between the lesson's before and after, in interleaved rounds over the same weights.

    part: a class with the interface of the part that the lesson changes. number: of the lesson, a text.
    model: None is the shipped one, on the best device. rounds: None is what the lesson's course says. By default a race
    takes up to half a minute. Where time says nothing, something is counted in its place, as `Track.counted` says.
    Raises `LessonError` for a lesson that is not there.
    """
    rung = lesson(number)
    if not rung.changes:
        first = next(iter(COURSES))
        raise LessonError(f"lesson {rung.number} changes nothing: give {first} or a later one")
    course = course_of(rung.number)
    rounds = course.track.rounds if rounds is None else rounds
    require(rounds >= 1, f"rounds is {rounds!r}: give 1 or more")
    name = getattr(part, "__name__", str(part))
    model = model or load_model()
    mine = course.world.engine(rung.after.with_(**{course.world.part: part}), model.device)
    trouble = trouble_with(mine, rung, model, name)
    if trouble:
        return Race(rung.number, name, None, trouble)
    racers = [
        replace(rung, number="before", title=f"lesson {_before(rung).number}", after=rung.before),
        replace(rung, number="yours", title=name, after=mine),
        replace(rung, number="course", title=f"lesson {rung.number}"),
    ]
    on_gpu = model.device.type != "cpu"
    try:
        if course.track.untimed and (course.track.counted in NEVER_TIMED or not on_gpu):
            return _noted(_counted(course, racers, model))
        workload = workload_of(course.track, on_gpu)
        config = EngineConfig(max_batch_size=len(workload.prompts), prefix_cache=False)
        ladder = compare_ladder(model, workload, rounds, config, racers, control=racers[0])
    except RosecourseError as error:
        return Race(rung.number, name, None, _nothing_timed(str(error), name, rung.number))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Race(rung.number, name, None, _nothing_timed(f"{name} raised {told(error)}", name, rung.number))
    raced = Race(rung.number, name, ladder, track=course.track)
    return _noted(raced) if rounds >= FEWEST_PAIRS else raced


def _noted(raced: Raced) -> Raced:
    """A race that came to its end, which the learner's progress now tells of."""
    note(raced.number, "race", raced.against_before())
    return raced


def _counted(course: Course, racers: Sequence[Lesson], model: Model) -> CountRace:
    """What the three do in a step. The course's part is the one that its exercise ends as."""
    before, yours, after = racers
    theirs = after.after.with_(**{course.world.part: course.ends_as(after.after)})
    each = {before.title: before.after, yours.title: yours.after, after.title: theirs}
    if course.track.counted == "late asks":  # the engine has no such kernel on a CPU: the cell brings it
        begins = after.after.with_(**{course.world.part: course.begins_as(before.after)})
        each = {"the untouched cell": begins, yours.title: yours.after, after.title: theirs}
    kind, count = COUNTED[course.track.counted]
    counts = {title: count(course.world.engine(one, model.device), model) for title, one in each.items()}
    return kind(course.number, yours.title, counts, course.track.untimed)


def _before(rung: Lesson) -> Lesson:
    """The lesson that a lesson begins from."""
    return LESSONS[LESSONS.index(rung) - 1]


def workload_of(track: Track, on_gpu: bool) -> Workload:
    """The requests of a race: all at once, each with a first token of its own."""
    prompts = [(1 + n, *[6] * (track.prompt_tokens - 1)) for n in range(track.requests[on_gpu])]
    params = SamplingParams(max_new_tokens=track.new_tokens[on_gpu], stop_on_eos=False)
    return Workload.of(prompts, params, samples=track.samples)


OTHERS_CHANGE = ("delivery", "ops")  # parts beside which others change that may round otherwise on a GPU
MADE = {"pipeline": completions_served, "delivery": completions_read}  # what is compared, by the kind of part


def trouble_with(mine: DecodeParts, rung: Lesson, model: Model, name: str) -> str:
    """Why a part cannot race: it fails, or gives other tokens than before the lesson; empty if it can."""
    course = course_of(rung.number)
    part = course.world.part
    interpreted = course.track.counted in ("kernels", "late asks") and model.device.type == "cpu"
    made = _few_completions if interpreted else MADE.get(part, _completions)
    if part == "ops" and model.dtype != torch.float32:  # right ones round otherwise, and a tie decides for either word
        model = load_model(device=model.device.type, dtype="float32")
    expected = made(model, rung.after if part in OTHERS_CHANGE else rung.before)
    try:
        given = made(model, mine)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the learner's code raises: it is told, not timed
        return _nothing_timed(f"{name} raised {told(error)}", name, rung.number)
    wrong = [n for n, (right, ours) in enumerate(zip(expected, given, strict=True)) if right != ours]
    if not wrong:
        return ""
    right, ours = expected[wrong[0]], given[wrong[0]]
    pairs = enumerate(zip(right, ours, strict=False))
    token = next((n for n, (one, other) in pairs if one != other), min(len(right), len(ours)))
    where = f"request {wrong[0]} from its new token {token} on"
    return _nothing_timed(
        f"{name} gives other tokens than before the lesson, first in {where} ({len(wrong)} of {len(given)} requests)",
        name,
        rung.number,
    )


def _nothing_timed(why: str, name: str, number: str) -> str:
    return f'{why}. Nothing was timed: check({name}, "{number}") says what is wrong.'


def _few_completions(model: Model, parts: DecodeParts) -> list[list[int]]:
    """The same of two steps, where kernels are interpreted; `check` has tried more."""
    return _completions(model, parts, steps=2)


def _completions(model: Model, parts: DecodeParts, steps: int = 10) -> list[list[int]]:
    """The greedy tokens of prompts of mixed lengths over several blocks, each with a fork that goes another way."""
    engine = InferenceEngine(model, EngineConfig(block_size=4, max_batch_size=16, prefix_cache=False), parts)
    for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
        cache.zero_()  # a slot that is never written must not depend on what lay in memory
    params = SamplingParams(max_new_tokens=12, stop_on_eos=False)
    sessions = [engine.new_session([3 * n + 1] * n, params) for n in range(1, 9)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    for number in range(steps):
        if number == 4:
            forks = [engine.fork(session) for session in sessions]
            for fork in forks:
                fork.token_ids[-1] = 99  # another word
            sessions += forks
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    return [session.completion_ids for session in sessions]
