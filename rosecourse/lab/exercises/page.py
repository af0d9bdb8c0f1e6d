"""What the pages of the lessons show in the same way: result, forecast, counts, and the change, folded."""

from dataclasses import dataclass

import torch

from ...config import EngineConfig
from ...errors import ConfigError, LessonError
from ...lessons import lesson
from ...lessons.workloads import name_of_steps
from ...measure.anatomy import PART_NAMES, touched
from ...measure.counters import Counts, count_step, counts_table
from ...models.load import load_model
from ...pages.say import say
from ...pages.source import diff_html
from ...pictures.drawing import new_figure
from ...pictures.plots import lesson_figure
from ...records.runs import recorded_comparison
from ...records.steps import recorded_steps
from ..checks.verdict import PASSED, lesson_with_a_part
from ..course.scenes import prefilled, step

COUNTED_SESSIONS = 16
SUMMARY = "The change: open it when you have tried, or let check pass"
KERNELS = {"kv_append", "forward", "ops"}  # parts that decide which kernels run


def result(number: str, workload: str | None = None) -> None:
    """Show what was recorded of a lesson: a sentence on its headline, its figure, and the command that records it.

    workload: the name of another one than the lesson's own, such as `C-scheduler`. Raises `ConfigError` where nothing
    is recorded.
    """
    rung = lesson(number)
    found = recorded_comparison(rung.number, workload)
    if found is None:
        raise ConfigError(f"lesson {rung.number} is not recorded: `python tools/record/runs.py` records it on a GPU")
    say(found.effect(*rung.headline))
    with new_figure(3.6) as figure:
        lesson_figure(figure, found, f"Lesson {rung.number}, recorded: {rung.title}")
    say(f"Recorded with `{found.recording.document['command']}` at commit {found.recording.document['commit'][:12]}.")


def forecast(number: str) -> None:
    """Say what share of a recorded step the lesson can remove, and so the most that it can gain (Amdahl's law).

    The step is one inside a block, before the lesson. A lesson that keeps the kernels leaves the time in which the
    device is busy, by the profiler. Raises `LessonError` for a lesson that changes nothing, and `ConfigError` where no
    steps are recorded.
    """
    rung = lesson(number)
    steps = recorded_steps(name_of_steps(rung.workload))
    if not rung.changes:
        raise LessonError(f"lesson {rung.number} changes nothing: give 036 or a later one")
    if steps is None or rung.number not in steps.titles:
        raise ConfigError(f"the steps of lesson {rung.number} are not recorded: `tools/record/steps.py` records them")
    names = list(steps.titles)
    before = names[names.index(rung.number) - 1]
    step = steps.between(before, rung.number)
    changed = touched(step.turns["before"], step.turns["after"], rung.changes)
    parts = [part for part in step.turns["before"] if part in changed]
    share, whole = step.share("before", *parts), step.step_ms("before")
    where = f"{steps.device}, workload {rung.workload.name}, recorded apart from the runs"
    told = f"Of this, {' and '.join(PART_NAMES[part] for part in parts)}: {share * whole:.2f} ms, {share:.0%}."
    busy = steps.busy_ms[before]
    if not KERNELS & {*rung.changes} and busy / whole > 1 - share:
        share = 1 - busy / whole
        told = f"Its kernels take {busy:.2f} ms, by a profiler, and stay; the rest is {share:.0%}."
    say(
        f"A step before the lesson: {whole:.2f} ms ({where}).",
        told,
        f"Without this share a step would be 1 / (1 - {share:.3f}) = {1 / (1 - share):.2f} times as fast, at most.",
    )


@dataclass(frozen=True, repr=False)
class Counted:
    """What one step of the part that a lesson changes does, before and after; a table in a notebook."""

    before: Counts
    after: Counts

    def __str__(self) -> str:
        return str(counts_table({"before": self.before, "after": self.after}))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(counts_table({"before": self.before, "after": self.after}).to_html())


def counts(number: str, prompt_tokens: int = 3) -> Counted:
    """Count what the second decode step of 16 sessions does before and after a lesson.

    It runs on the CPU; a lesson with a Triton kernel runs on a GPU if there is one. The stage is one that
    the lesson replaces, or the whole step. prompt_tokens: of each session, for blocks of 64 tokens: with 63 the counted
    step begins a block.
    """
    rung = lesson(number)
    n = COUNTED_SESSIONS
    # A lesson without kernels counts plain operations on every machine, also where Triton's interpreter could run.
    kernel_from = n if rung.kernels else n + 1
    config = EngineConfig(block_size=64, max_batch_size=n, prefix_cache=False, triton_kv_append_min_batch=kernel_from)
    model = load_model(device="cuda" if rung.kernels and torch.cuda.is_available() else "cpu")
    engines, found = rung.engines(model, config), []
    common = [name for name in rung.changes if all(name in engine.decode_step.stages for engine in engines)]
    for engine in engines:
        sessions = prefilled(engine, [[token] * prompt_tokens for token in range(1, n + 1)])
        step(engine, sessions)
        found.append(count_step(engine, sessions, next(iter(common), None)))
    return Counted(*found)


@dataclass(frozen=True, repr=False)
class Change:
    """A lesson's diff. In a notebook it is folded until `check` has passed; a reader may open it at any time.

    number: of the lesson. diff: the source of its part before and after, as a unified diff.
    """

    number: str
    diff: str

    def __str__(self) -> str:
        return self.diff

    def __repr__(self) -> str:
        return f"the change of lesson {self.number}: {len(self.diff.splitlines())} lines"

    def _repr_html_(self) -> str:
        state = " open" if self.number in PASSED else ""
        return f"<details{state}><summary>{SUMMARY}</summary>{diff_html(self.diff)}</details>"


def change(lesson_number: str, *parts: str) -> Change:
    """What a lesson changes; parts: in these of its parts alone, such as `runner`.

    Raises `LessonError` for a lesson that is not there, or that replaces no part.
    """
    rung = lesson_with_a_part(lesson_number)
    return Change(rung.number, rung.diff(*parts))
