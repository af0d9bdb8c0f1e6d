"""Recording decode steps: where the host's time goes on every rung, what a step does, and its timelines.

A profiler can slow a process down for good, because CUPTI stays attached: all that is timed, of all workloads, comes
before the first timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np

from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..errors import ConfigError, RosecourseError
from ..lessons import Lesson
from ..measure.anatomy import CHUNK, decode_anatomies
from ..measure.counters import count_step
from ..measure.floor import kv_bytes_per_position, weight_bytes
from ..measure.forks import fork_anew
from ..measure.logits import SameLogits, compare_logits, logits_document
from ..measure.profiling import take_timeline
from ..measure.replayed_step import replayed_step
from ..measure.stats import order_of_round
from ..measure.timeline import STEP_KINDS, Timeline
from ..request.session import InferenceSession
from .assignments import SMALL_VOCABULARY, Assignment
from .json_file import write_json
from .recorder import Recorder
from .sealed import seal
from .steps import FORMAT, UNITS, RecordedSteps, read_steps, steps_name

TURNS = 16  # of `CHUNK` steps each: together one block of 64 tokens
COUNTED = TURNS * CHUNK
TIMELINE_ROUNDS = 3  # each takes every rung in turn; of a rung one is kept


@dataclass(frozen=True)
class StepsTask:
    """The steps of a workload to record, in the middle of its requests, which are all alike.

    prompt_ids: so long that the counted steps lie around the mean context of the workload; batch: sessions in a step.
    """

    assignment: Assignment
    prompt_ids: Sequence[int]
    batch: int

    @classmethod
    def of(cls, assignment: Assignment) -> StepsTask:
        """The steps of an article's workload."""
        half = assignment.sizes["max_new_tokens"] // 2
        length = max(1, half - COUNTED // 2 - CHUNK)  # a turn warms up
        given = list(assignment.order.prompt_ids)
        prompt_ids = (given * (1 + length // len(given)))[:length]
        return cls(assignment, prompt_ids, assignment.config.max_batch_size)

    @property
    def context(self) -> int:
        """The live positions of a session in the middle of the counted steps."""
        return len(self.prompt_ids) + CHUNK + COUNTED // 2

    @property
    def least(self) -> int:
        """Tokens that a session must have room for."""
        return len(self.prompt_ids) + 1 + max(CHUNK + COUNTED, 2 * self.assignment.config.block_size)

    @property
    def kinds(self) -> list[str]:
        """The kinds of steps of which timelines are taken; one session alone has no forks."""
        return [kind for kind in STEP_KINDS if kind != "fork" or self.batch > 1]

    def prompt_before(self, kind: str) -> list[int]:
        """The prompt before the timelines of a kind: so long that those at a boundary are in the middle, too."""
        if kind != "boundary":
            return list(self.prompt_ids)
        size, sizes = self.assignment.config.block_size, self.assignment.sizes
        length = max(1, sizes["max_new_tokens"] // 2 - size - 1)  # one boundary comes before the profiler
        return (list(self.prompt_ids) * (1 + length // len(self.prompt_ids)))[:length]


class StepRecorder:
    """Records the steps of workloads, over the model and into the folder of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def head(self, task: StepsTask) -> dict[str, Any]:
        """All that is known before the steps are measured."""
        return self.recorder.head(task.assignment) | {"format": FORMAT, "units": UNITS}

    def recorded(self, task: StepsTask) -> RecordedSteps | None:
        """The steps of a workload, if they are there, of the same source, machine and settings."""
        name = task.assignment.name
        try:
            found = read_steps(self.recorder.path(steps_name(name)), name)
        except RosecourseError:  # a file that is missing or damaged is recorded anew
            return None
        return found if self.recorder.fits(task.assignment, found.document) else None

    def timed(self, task: StepsTask) -> dict[str, Any]:
        """The host's time by part on every rung, in turns; and what a step must move, and does."""
        rungs, model = task.assignment.rungs, self.recorder.model
        engines = {rung.number: self._engine(task, rung) for rung in rungs}
        sessions = {number: _started(engine, task.prompt_ids, task.batch) for number, engine in engines.items()}
        times = decode_anatomies(engines, sessions, TURNS, CHUNK, wait=False)
        positions = task.batch * task.context
        return {
            "batch": task.batch,
            "context": task.context,
            "chunk": CHUNK,
            "copy_bytes_per_second": self.recorder.bandwidth,
            "step_bytes": weight_bytes(model.shape, model.dtype)
            + positions * kv_bytes_per_position(model.shape, model.dtype),
            "parts": {
                number: {part: [round(1e9 * one) for one in seconds] for part, seconds in parts.items()}
                for number, parts in times.seconds.items()
            },
            "counts": {rung.number: self._counts(task, rung) for rung in rungs},
            "logits": logits_document(self._logits(task)),
        }

    def _logits(self, task: StepsTask) -> dict[tuple[str, str], SameLogits]:
        """Every rung's beside those of the rung before and of the first, for prompts that are all different."""
        draw = np.random.default_rng(task.assignment.order.seed)
        lengths = draw.integers(1, len(task.prompt_ids), task.batch, endpoint=True)
        prompts = [draw.integers(1, SMALL_VOCABULARY, length).tolist() for length in lengths]
        engines = {rung.number: self._engine(task, rung) for rung in task.assignment.rungs}
        return compare_logits(engines, prompts, COUNTED)

    def _counts(self, task: StepsTask, rung: Lesson) -> dict[str, dict[str, int]]:
        """What a step of each kind does: at a block boundary, inside the new block, and right after a fork."""
        engine = self._engine(task, rung)
        size = engine.config.block_size
        prompt_ids = (list(task.prompt_ids) * size)[: max(1, size - 2)]
        sessions = _started(engine, prompt_ids, task.batch)
        counts = {}
        for place in range(len(prompt_ids), size + 3):
            rows = count_step(engine, sessions).rows()
            counts[place] = {name: int(number) for name, number in rows.items()}
        found = {"inside": counts[size + 2], "boundary": counts[size]}
        if "fork" in task.kinds:
            fork_anew(engine, sessions)
            found["fork"] = {name: int(number) for name, number in count_step(engine, sessions).rows().items()}
        return found

    def add_timelines(self, task: StepsTask, timed: dict[str, Any]) -> RecordedSteps:
        """Take the timelines of every rung, and write the file, whole or not at all."""
        taken: dict[tuple[str, str], list[Timeline]] = {}
        rungs = task.assignment.rungs
        for number in range(TIMELINE_ROUNDS):
            for which, kind in product(order_of_round(len(rungs), number), task.kinds):
                rung = rungs[which]
                taken.setdefault((rung.number, kind), []).append(self._timeline(task, rung, kind))
        layers = self.recorder.model.shape.num_layers
        timelines = {
            rung.number: {kind: _shortest(taken[rung.number, kind], layers) for kind in task.kinds} for rung in rungs
        }
        date = datetime.now(UTC).isoformat(timespec="seconds")
        found = RecordedSteps.of(seal(self.head(task) | timed | {"timelines": timelines, "date": date}))
        self.recorder.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.recorder.path(steps_name(task.assignment.name)), found.document)
        return found

    def _timeline(self, task: StepsTask, rung: Lesson, kind: str) -> Timeline:
        engine = self._engine(task, rung)
        return take_timeline(engine, _started(engine, task.prompt_before(kind), task.batch), kind)

    def _engine(self, task: StepsTask, rung: Lesson) -> InferenceEngine:
        model = self.recorder.model
        config = replace(task.assignment.config, max_seq_len=min(task.least, model.shape.context))
        return InferenceEngine(model, config, rung.after)


def _shortest(timelines: Sequence[Timeline], layers: int) -> dict[str, Any]:
    """The document of the shortest: what else the machine did has only made the others longer.

    Where windows of replays cut kernels off, it is the shortest of those that a whole step can be put together from.
    """
    return min(timelines, key=lambda one: (not _is_whole(one, layers), one.step_us)).document()


def _is_whole(timeline: Timeline, layers: int) -> bool:
    """Whether a window has all kernels of a step, or a border of two steps and a whole layer."""
    if sum(kernel.kind == "attention" for kernel in timeline.kernels) >= layers:
        return True
    with suppress(ConfigError):
        replayed_step(timeline, layers)
        return True
    return False


def _started(engine: InferenceEngine, prompt_ids: Sequence[int], batch: int) -> list[InferenceSession]:
    """Sessions that are all alike, prefilled and with their first token, as long as the engine takes them."""
    params = SamplingParams(max_new_tokens=engine.max_seq_len - len(prompt_ids), stop_on_eos=False)
    sessions = [engine.new_session(prompt_ids, params) for _ in range(batch)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions
