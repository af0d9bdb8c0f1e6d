"""Recording: every rung under one workload, in rounds, so that a drift of the machine meets all of them.

Each round runs every rung once, forwards and then backwards; a round that warms up comes first and does not count, and
two where engines have a prefix cache: the second is the first that finds prompts in it, and so the first to prefill in
such shapes, for which a GPU's libraries make their plans. The rounds so far lie beside the file that they will become,
and a later call goes on from there: it warms up and continues with the next round.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..engine.engine import InferenceEngine
from ..errors import RequestFailed, RosecourseError
from ..measure.floor import bytes_per_run, copy_bandwidth
from ..measure.metrics import DEFINITIONS
from ..measure.provenance import driver_version, provenance
from ..measure.stats import order_of_round
from ..measure.workload import RUNNERS, Run
from ..models.shape import Model
from .assignments import Assignment
from .json_file import write_json
from .recordings import FORMAT, Recording, read_recording
from .results import gpu_folder
from .run_json import packed_run
from .sealed import seal

UNITS = (
    "microseconds, from the start of a run; moments_us, read_us: the first, then the gaps; tokens: first, count, ..."
)


class Deadline:
    """When a command must have ended. minutes: from now on; None: whenever it is done."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def fits(self, seconds: float) -> bool:
        """Whether work that takes so long is done in time."""
        return self._end is None or time.monotonic() + seconds <= self._end


@dataclass(frozen=True)
class Outcome:
    """How far a recording has come. seconds: of a round; recording: the whole, None while rounds are missing."""

    rounds: int
    seconds: float
    recording: Recording | None


class Recorder:
    """Records workloads over one model, on one machine, from one source, into a folder for each GPU."""

    def __init__(self, model: Model, source: dict[str, Any], folder: Path) -> None:
        """source: commit and dirty flag, as in `provenance`."""
        here = provenance()
        self.model, self.source = model, source
        self.host = machine_of(model.device, here["host"])
        self.versions = here["versions"]
        self.folder = folder / gpu_folder(self.host["gpu"] or "cpu")
        self._bandwidth: float | None = None

    @property
    def bandwidth(self) -> float:
        """The copy bandwidth, bytes a second, measured when it is first needed."""
        self._bandwidth = self._bandwidth or float(copy_bandwidth(self.model.device))
        return self._bandwidth

    def path(self, name: str) -> Path:
        """The file of a workload, or of what else has a name."""
        return self.folder / f"{name}.json"

    def partial_path(self, task: Assignment) -> Path:
        """The file of the rounds so far."""
        return self.path(f"{task.name}.partial")

    def head(self, task: Assignment) -> dict[str, Any]:
        """All that is known before a workload is measured. Where it is the same, the figures would be the same."""
        model = {
            "model": self.model.name,
            "device": self.model.device.type,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }
        return {
            "format": FORMAT,
            "workload": task.name,
            "titles": {rung.number: rung.title for rung in task.rungs},
            "command": task.order.command,
            **self.source,
            "host": self.host,
            "versions": self.versions,
            "settings": task.settings | model,
        }

    def fits(self, task: Assignment, document: Mapping[str, Any]) -> bool:
        """Whether a document is of the same source, machine and settings; never for a source with changes."""
        if self.source["commit"] is None or self.source["dirty"] is not False:
            return False
        return all(document.get(key) == value for key, value in self.head(task).items() if key != "format")

    def recorded(self, task: Assignment) -> Recording | None:
        """The whole recording of a workload, if it is there, of the same source, machine and settings."""
        return self._read(task, self.path(task.name))

    def _read(self, task: Assignment, path: Path) -> Recording | None:
        try:
            found = read_recording(path, task.name)
        except RosecourseError:  # a file that is missing or damaged is recorded anew
            return None
        return found if self.fits(task, found.document) else None

    def record(self, task: Assignment, rounds: int, deadline: Deadline, anew: bool = False) -> Outcome:
        """Measure the rounds that are missing, as far as the deadline lets it. anew: none of those that are there.

        Raises `RequestFailed` for a run in which a request failed: nothing of its round is written.
        """
        partial = None if anew else self._read(task, self.partial_path(task))
        recording = None if partial is None else _Rounds(partial.document)
        recording = recording or _Rounds(self.head(task) | self._beginning(task))
        seconds = self._measure(task, recording, rounds, deadline)
        if recording.done < rounds:
            return Outcome(recording.done, seconds, None)
        found = Recording.of(recording.sealed())
        write_json(self.path(task.name), found.document)
        self.partial_path(task).unlink(missing_ok=True)
        return Outcome(rounds, seconds, found)

    def _beginning(self, task: Assignment) -> dict[str, Any]:
        return {
            "units": UNITS,
            "definitions": DEFINITIONS,
            "same_tokens": True,
            "tokens_sha256": "",
            "copy_bytes_per_second": self.bandwidth,
            "rounds": 0,
            "rungs": {rung.number: [] for rung in task.rungs},
        }

    def _measure(self, task: Assignment, recording: _Rounds, rounds: int, deadline: Deadline) -> float:
        """Measure round after round, each written as soon as it is there; returns the seconds that one takes."""
        engines = [InferenceEngine(self.model, task.config, rung.after) for rung in task.rungs]
        warm_ups = [0] * (2 if task.config.prefix_cache else 1)
        numbers = [*warm_ups, *range(recording.done + 1, rounds + 1)]
        seconds, took = recording.seconds, []
        # No bar where nobody watches (disable=None), and none that moves while the clock runs.
        with tqdm(total=len(numbers) * len(engines), desc=task.name, file=sys.stderr, leave=False, disable=None) as bar:
            for number in numbers:
                if not deadline.fits(seconds if number else 2 * seconds):  # a warm-up alone would be of no use
                    return seconds
                start = time.perf_counter()
                runs: dict[int, Run] = {}
                for which in order_of_round(len(engines), number):
                    runs[which] = _run(task, task.rungs[which].number, engines[which])
                    recording.compare(runs[which], task.rungs[which].number, self.model.dtype == torch.float32)
                    bar.update()
                took.append(time.perf_counter() - start)
                seconds = max(took[len(warm_ups) :] or took)
                if number:
                    self._add(task, recording, runs)
        return seconds

    def _add(self, task: Assignment, recording: _Rounds, runs: Mapping[int, Run]) -> None:
        packed = {
            rung.number: packed_run(runs[which], bytes_per_run(self.model, task.workload, runs[which]))
            for which, rung in enumerate(task.rungs)
        }
        recording.add(packed)
        self.folder.mkdir(parents=True, exist_ok=True)  # not before: a refused run leaves nothing behind
        write_json(self.partial_path(task), recording.sealed())


def _run(task: Assignment, number: str, engine: InferenceEngine) -> Run:
    """One run of a rung. Raises `RequestFailed`, which names workload and rung, where a request failed."""
    try:
        return RUNNERS[task.benchmark](engine, task.workload)
    except RequestFailed as error:
        raise RequestFailed(f"workload {task.name}, rung {number}: {error}") from error


class _Rounds:
    """The rounds of a recording so far: a document that grows."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @property
    def done(self) -> int:
        return self.document["rounds"]

    @property
    def seconds(self) -> float:
        """How long the runs of the longest round took; 0 before the first."""
        rounds = zip(*self.document["rungs"].values(), strict=True)
        return max((sum(run["total_us"] for run in runs) / 1e6 for runs in rounds), default=0.0)

    def compare(self, run: Run, number: str, must_agree: bool) -> None:
        """Note whether a run made the tokens of the first. Raises `RosecourseError` where it must have, and has not."""
        digest = hashlib.sha256(json.dumps(run.completions).encode()).hexdigest()
        known = self.document["tokens_sha256"] or digest
        self.document |= {
            "tokens_sha256": known,
            "same_tokens": self.document["same_tokens"] and digest == known,
        }
        if must_agree and digest != known:
            where = f"workload {self.document['workload']}, rung {number}"
            raise RosecourseError(f"{where}: the tokens differ, the times mean nothing; please report this")

    def add(self, runs: Mapping[str, dict[str, Any]]) -> None:
        """Add a round: the packed run of each rung."""
        for number, run in runs.items():
            self.document["rungs"][number].append(run)
        self.document["rounds"] += 1

    def sealed(self) -> dict[str, Any]:
        return seal(self.document | {"date": datetime.now(UTC).isoformat(timespec="seconds")})


def machine_of(device: torch.device, host: dict[str, Any]) -> dict[str, Any]:
    """The host, with the GPU that is measured (None where the CPU is) and its driver."""
    cuda = device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if cuda else None
    return host | {"gpu": gpu, "driver": driver_version() if cuda else None}
