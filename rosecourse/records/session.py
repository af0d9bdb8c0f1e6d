"""One call of `rosecourse record`: what it records, one workload after another, and when it must have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..checks import require
from ..measure.traffic import MixedTraffic
from .assignments import Assignment, load_assignments
from .comparisons import RecordedComparison
from .names import BURST, workload_in
from .recorder import Deadline, Recorder
from .recordings import Recording
from .step_recorder import StepRecorder, StepsTask
from .steps import RecordedSteps, steps_name

IS_THERE = "{}: is there, of this commit and settings (--force records it anew)"


@dataclass(frozen=True)
class Session:
    """What is recorded, and how. firsts: the workloads; after a burst of `traffic` come its loads. anew: what is there.

    Raises `ConfigError` for a file that cannot be written.
    """

    recorder: Recorder
    firsts: Sequence[Assignment]
    traffic: MixedTraffic
    steps: Sequence[StepsTask]
    rounds: int
    deadline: Deadline
    anew: bool

    def __post_init__(self) -> None:
        tasks = [task.name for task in self.firsts] + [steps_name(task.assignment.name) for task in self.steps]
        for path in map(self.recorder.path, tasks):
            require(not path.is_dir(), f"{path} is a folder: move it away, or give another --out")

    def record(self) -> bool:
        """Record one workload after another, each written as soon as it is measured; False if time ran out."""
        return all(self._record_all(task) for task in self.firsts) and self._record_steps()

    def _record_steps(self) -> bool:
        """Record the steps that are not there; False if no time is left.

        What is timed comes before the first timeline: a profiler can slow a process down for good.
        """
        recorder = StepRecorder(self.recorder)
        there = [task for task in self.steps if not self.anew and recorder.recorded(task) is not None]
        for task in there:
            print(IS_THERE.format(steps_name(task.assignment.name)), flush=True)
        missing = [task for task in self.steps if task not in there]
        if missing and not self.deadline.fits(0):
            print("steps: no time is left for them", flush=True)
            return False
        for task, timed in [(task, recorder.timed(task)) for task in missing]:
            print(steps_summary(recorder.add_timelines(task, timed)), flush=True)
        return True

    def _record_all(self, first: Assignment) -> bool:
        """Record a workload, and after a burst its loads; False if time did not suffice."""
        recording = self._record(first)
        if recording is None or workload_in(first.name) != BURST:
            return recording is not None
        vocab_size = self.recorder.model.shape.vocab_size
        loads = load_assignments(self.traffic, vocab_size, recording, first.order)
        return all(self._record(task) is not None for task in loads)

    def _record(self, task: Assignment) -> Recording | None:
        """Record a workload, unless it is there; None if time does not suffice."""
        recorded = None if self.anew else self.recorder.recorded(task)
        if recorded is not None:
            print(IS_THERE.format(task.name), flush=True)
            return recorded
        outcome = self.recorder.record(task, self.rounds, self.deadline, self.anew)
        if outcome.recording is None:
            takes = f", each takes {outcome.seconds / 60:.1f} minutes" if outcome.seconds else ""
            print(f"{task.name}: {outcome.rounds} of {self.rounds} rounds are there{takes}", flush=True)
        else:
            print(ladder_summary(outcome.recording), flush=True)
        return outcome.recording


def ladder_summary(recording: Recording) -> str:
    """A line on a recording, and one on each of its rungs."""
    conditions = recording.conditions
    tokens = "same tokens" if conditions.same_tokens else "some tokens differ (rounding)"
    lines = [f"{recording.document['workload']}: {conditions.rounds} rounds, {tokens}"]
    before = None
    for number, rung in recording.rungs.items():
        line = f"  {number} {recording.document['titles'][number]}: TPOT p50 {rung.figure('TPOT', 'p50'):.2f} ms"
        if before is not None:
            speedup = RecordedComparison.of(recording, before, number).speedup
            line += f"; {speedup} the throughput of {before}, {speedup.verdict}"
        lines.append(line)
        before = number
    return "\n".join(lines)


def steps_summary(steps: RecordedSteps) -> str:
    """A line on the recorded steps of a workload, and one on each rung."""
    ladder = steps.ladder
    where = f"{ladder.batch} sessions of {ladder.context} tokens, floor {ladder.floor_ms:.2f} ms"
    lines = [f"{steps_name(steps.document['workload'])}: {where}"]
    for number, title in ladder.titles.items():
        device = f"device busy {ladder.busy_ms[number]:.2f} ms in {ladder.kernels[number]:,} kernels"
        lines.append(f"  {number} {title}: {ladder.times.step_ms(number):.2f} ms a step, {device}")
    return "\n".join(lines)
