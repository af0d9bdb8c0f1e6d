"""Recording: a lesson's before and after on its article's workload, and a timeline of one step of each.

The runs of all lessons come first and the timelines after them: a profiler can slow a process down for good, because
CUPTI stays attached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..config import EngineConfig, SamplingParams
from ..decode import DecodeParts
from ..engine.engine import InferenceEngine
from ..errors import RosecourseError
from ..lessons import Lesson
from ..lessons.workloads import ArticleWorkload
from ..measure.floor import bytes_per_run, copy_bandwidth
from ..measure.metrics import DEFINITIONS
from ..measure.profiling import STEPS, take_timeline
from ..measure.provenance import driver_version, provenance
from ..measure.stats import interleave
from ..measure.timeline import Timeline
from ..measure.workload import RUNNERS, Run, Workload
from ..models.shape import Model
from .comparisons import FORMAT, RecordedComparison, read_comparison_file
from .json_file import write_json
from .results import gpu_folder
from .run_json import packed_run
from .sealed import seal
from .timelines import read_timelines_file, timelines_document, timelines_file_name

UNITS = "microseconds, from the start of a run; moments_us: the first, then the gaps; tokens: first, count, ..."


@dataclass(frozen=True)
class Assignment:
    """A lesson to record. workload: its article's, or what was asked for instead.

    command: as it can be typed again; flags: the value of every flag.
    """

    lesson: Lesson
    workload: ArticleWorkload
    command: str
    flags: dict[str, Any]


class Recorder:
    """Records lessons over one model, on one machine, from one source, into a folder for each GPU."""

    def __init__(
        self, model: Model, prompt_ids: list[int], config: EngineConfig, source: dict[str, Any], folder: Path
    ) -> None:
        """config: of the engines, except for their sizes; source: commit and dirty flag, as in `provenance`."""
        here = provenance()
        self.model, self.prompt_ids, self.config, self.source = model, prompt_ids, config, source
        self.host = machine_of(model.device, here["host"])
        self.versions = here["versions"]
        self.folder = folder / gpu_folder(self.host["gpu"] or "cpu")
        self.bandwidth: float | None = None  # measured when it is first needed

    def runs_path(self, rung: Lesson) -> Path:
        return self.folder / f"{rung.number}.json"

    def timelines_path(self, rung: Lesson) -> Path:
        return self.folder / timelines_file_name(rung.number)

    def head(self, task: Assignment) -> dict[str, Any]:
        """All that is known before a lesson is measured. Where it is the same, the figures would be the same."""
        settings = task.flags | asdict(self.config) | asdict(task.workload)
        settings |= {
            "model": self.model.name,
            "device": self.model.device.type,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }
        return {
            "format": FORMAT,
            "lesson": task.lesson.number,
            "title": task.lesson.title,
            "command": task.command,
            **self.source,
            "host": self.host,
            "versions": self.versions,
            "settings": settings,
        }

    def has_runs(self, task: Assignment) -> bool:
        """Whether the runs are recorded, of the same source, machine and settings."""
        path = self.runs_path(task.lesson)
        return self._is_recorded(task, lambda: read_comparison_file(path, task.lesson.number).document)

    def has_timelines(self, task: Assignment) -> bool:
        """Whether the timelines are recorded, of the same source, machine and settings."""
        path = self.timelines_path(task.lesson)
        return self._is_recorded(task, lambda: read_timelines_file(path, task.lesson.number))

    def _is_recorded(self, task: Assignment, read: Callable[[], dict[str, Any]]) -> bool:
        """Whether there is a whole file of the same source, machine and settings; never for a source with changes."""
        if self.source["commit"] is None or self.source["dirty"] is not False:
            return False
        try:
            document = read()
        except RosecourseError:  # a file that is missing or damaged is recorded anew
            return False
        return all(document.get(key) == value for key, value in self.head(task).items() if key != "format")

    def record_runs(self, task: Assignment, pairs: int, seed: int) -> RecordedComparison:
        """Measure a lesson's runs and write their file, whole or not at all."""
        self.bandwidth = self.bandwidth or float(copy_bandwidth(self.model.device))
        params = SamplingParams(max_new_tokens=task.workload.max_new_tokens, stop_on_eos=False, seed=seed)
        work = Workload.of((tuple(self.prompt_ids),) * task.workload.num_requests, params)
        sides = self._measure(task, work, pairs)
        same_tokens = all(one.completions == sides["after"][0].completions for side in sides.values() for one in side)
        if self.model.dtype == torch.float32 and not same_tokens:
            raise RosecourseError(
                f"lesson {task.lesson.number}: the tokens differ, the times mean nothing; please report this"
            )
        document = self.head(task) | {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "units": UNITS,
            "definitions": DEFINITIONS,
            "same_tokens": same_tokens,
            "copy_bytes_per_second": self.bandwidth,
        }
        for name, side in sides.items():
            document[name] = [packed_run(one, bytes_per_run(self.model, work, one)) for one in side]
        recording = RecordedComparison.of(seal(document))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.runs_path(task.lesson), recording.document)
        return recording

    def _measure(self, task: Assignment, work: Workload, pairs: int) -> dict[str, list[Run]]:
        """The counted runs before and after; the first lesson has nothing before it."""
        runner, sides = RUNNERS[task.workload.benchmark], self._sides(task.lesson)
        engines = [self._engine(parts, task.workload, task.workload.max_new_tokens) for parts in sides.values()]
        total = len(engines) * (pairs + 1)
        # No bar where nobody watches (disable=None), and none that moves while the clock runs.
        with tqdm(total=total, desc=task.lesson.number, file=sys.stderr, leave=False, disable=None) as bar:

            def one(engine: InferenceEngine) -> Run:
                run = runner(engine, work)
                bar.update()
                return run

            if len(engines) == 1:
                return {"before": [], "after": [one(engines[0]) for _ in range(total)][1:]}
            before, after = interleave(lambda: one(engines[0]), lambda: one(engines[1]), pairs)
            return {"before": before, "after": after}

    def record_timelines(self, task: Assignment, seed: int) -> dict[str, Timeline]:
        """Take a lesson's timelines, with the batch of its workload, and write their file, whole or not at all."""
        sides = self._sides(task.lesson)
        timelines = {side: self._timeline(parts, task.workload, seed) for side, parts in sides.items()}
        head = self.head(task) | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.timelines_path(task.lesson), timelines_document(head, timelines))
        return timelines

    def _timeline(self, parts: DecodeParts, workload: ArticleWorkload, seed: int) -> Timeline:
        """A timeline of an engine like that of the runs, with room for its steps where a run has fewer."""
        new = max(workload.max_new_tokens, STEPS + 1)
        engine = self._engine(parts, workload, new)
        params = SamplingParams(max_new_tokens=new, stop_on_eos=False, seed=seed)
        sessions = [engine.new_session(self.prompt_ids, params) for _ in range(engine.config.max_batch_size)]
        engine.take_tokens(sessions, engine.prefill(sessions))
        return take_timeline(engine, sessions)

    def _sides(self, rung: Lesson) -> dict[str, DecodeParts]:
        return ({"before": rung.before} if rung.changes else {}) | {"after": rung.after}

    def _engine(self, parts: DecodeParts, workload: ArticleWorkload, max_new_tokens: int) -> InferenceEngine:
        """An engine no larger than the workload needs."""
        largest = min(workload.max_batch_size, workload.num_requests)
        longest = len(self.prompt_ids) + max_new_tokens
        config = replace(self.config, max_batch_size=largest, max_seq_len=longest)
        return InferenceEngine(self.model, config, parts)


def machine_of(device: torch.device, host: dict[str, Any]) -> dict[str, Any]:
    """The host, with the GPU that is measured (None where the CPU is) and its driver."""
    cuda = device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if cuda else None
    return host | {"gpu": gpu, "driver": driver_version() if cuda else None}
