"""Recorded runs: how data/results/<gpu>/<workload>.json is read.

A file is one sealed JSON object (`sealed`), and `RECORDING` names its keys. `rungs` holds the runs (`run_json`) of each
lesson's engine, in the order of the ladder; all were measured in the same rounds, so that run n of one rung and run n
of another make a pair. `copy_bytes_per_second` is the copy bandwidth that was measured beside them, and a run's
`decode_bytes` is what its decode steps must at least read: together they give the floor. A file in which a request gave
fewer tokens than the workload asks for is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from ..config import SamplingParams
from ..errors import RequestFailed
from ..lessons.workloads import ARTICLES
from ..measure.compare import Conditions
from ..measure.floor import share_of_runs
from ..measure.samples import Samples
from ..measure.traffic import D
from .names import remedy_of, workload_in
from .results import RESULTS, results_file
from .run_json import PACKED_RUN, unpacked_run
from .sealed import read_sealed, require_form

FORMAT = 2
MOST = 1_000_000  # requests

HEAD = {  # of every recorded file: what was measured, on what; see `sealed.require_form`
    "format": int,
    "workload": str,
    "titles": dict,
    "command": str,
    "date": str,
    "commit": (str, NoneType),
    "dirty": (bool, NoneType),
    "host": {"cpu": str, "gpu": (str, NoneType), "driver": (str, NoneType)},
    "versions": {"torch": (str, NoneType)},
    "settings": {
        "benchmark": str,
        "num_requests": int,
        "max_new_tokens": int,
        "max_batch_size": int,
        "block_size": int,
        "prompt_tokens": int,
        "rate": (float, NoneType),
        "model": str,
        "dtype": str,
    },
    "units": str,
    "copy_bytes_per_second": float,
    "sha256": str,
}

RECORDING = HEAD | {
    "definitions": dict,
    "same_tokens": bool,
    "tokens_sha256": str,
    "rounds": int,
    "rungs": dict,
}


@dataclass(frozen=True)
class Recording:
    """All rungs that were measured under one workload. rungs: by the number of the lesson after which they are.

    document: all that the file says, such as commit, command and host.
    """

    rungs: Mapping[str, Samples]
    document: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, document: dict[str, Any]) -> Recording:
        """Of a document. Raises `ValueError` where it is not of the form `RECORDING`, or its runs do not fit.

        Nor may a run hold a request that did not give all the tokens that the workload asks for.
        """
        require_form(document, RECORDING, "the document")
        _require_readers(document)
        rungs, rounds = document["rungs"], document["rounds"]
        for number, runs in rungs.items():
            require_form(runs, [PACKED_RUN], f"rung {number}")
            require_form(document["titles"].get(number), str, f"the title of {number}")
        if rounds < 1 or not rungs or any(len(runs) != rounds for runs in rungs.values()):
            raise ValueError("the rungs have not as many runs as there are rounds")
        if document["copy_bytes_per_second"] <= 0:
            raise ValueError("the copy bandwidth is not positive")
        samples = {number: Samples(number, [unpacked_run(run) for run in runs]) for number, runs in rungs.items()}
        _require_whole(samples, asked_of(document["settings"]))
        return cls(samples, document)

    @property
    def conditions(self) -> Conditions:
        """What was measured, and on what."""
        settings, host = self.document["settings"], self.document["host"]
        first = next(iter(self.rungs.values())).runs[0]
        return Conditions(
            requests=len(first.times),
            tokens=first.num_tokens,
            prompt_tokens=settings["prompt_tokens"],
            block_size=settings["block_size"],
            rounds=self.document["rounds"],
            model=settings["model"],
            dtype=settings["dtype"],
            device=host["gpu"] or host["cpu"],  # the runs were on the CPU where no GPU is named
            torch=self.document["versions"]["torch"] or "of unknown version",
            same_tokens=self.document["same_tokens"],
        )

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the source, the date and the command."""
        return provenance_of(self.document)

    @property
    def source(self) -> str:
        """The commit, and whether what is measured had been changed since."""
        return source_of(self.document)

    def share_of_floor(self, number: str) -> float:
        """The least time that a rung's decode steps could take / the time that they took: the median of its runs."""
        num_bytes = [run["decode_bytes"] for run in self.document["rungs"][number]]
        return share_of_runs(self.rungs[number].runs, num_bytes, self.document["copy_bytes_per_second"])


def asked_of(settings: Mapping[str, Any]) -> list[SamplingParams]:
    """What the workload of a recording asks for in every completion, as its settings say. Raises `ValueError`.

    The requests of an article's workload are all alike; those of mixed traffic follow from its seed.
    """
    requests, most = settings["num_requests"], settings["max_new_tokens"]
    if requests > MOST:
        raise ValueError(f"its workload has {requests} requests")
    seed = settings.get("traffic_seed")
    if seed is None:
        return [SamplingParams(max_new_tokens=most, stop_on_eos=False)] * (requests * settings.get("samples", 1))
    fewest = settings.get("min_new_tokens", D.new_tokens[0])  # older recordings do not say it: they are D's
    require_form(seed, int, "traffic_seed")
    require_form(fewest, int, "min_new_tokens")
    return replace(D, num_requests=requests, seed=seed, new_tokens=(fewest, most)).params


def _require_readers(document: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an article's workload whose streams were read otherwise than its name says.

    Older recordings do not say how: there was one way only.
    """
    work = ARTICLES.get(workload_in(document["workload"]))
    readers = document["settings"].get("readers", "sequential")
    require_form(readers, str, "readers")
    if work is not None and readers != work.readers:
        raise ValueError(f"its readers are {readers!r:.20}, those of workload {work.name} are {work.readers!r}")


def _require_whole(samples: Mapping[str, Samples], asked: Sequence[SamplingParams]) -> None:
    """Raise `ValueError` for a run in which a request did not give all that the workload asks for."""
    for number, side in samples.items():
        for place, run in enumerate(side.runs, start=1):
            try:
                run.require_whole(asked)
            except RequestFailed as error:
                raise ValueError(f"rung {number}, run {place}: {error}") from error


def provenance_of(document: Mapping[str, Any]) -> str:
    """One line on a recorded file: the device, the versions, the source, the date and the command."""
    host = document["host"]
    driver = [f"driver {host['driver']}"] if host["driver"] else []
    versions = [f"{name} {version}" for name, version in document["versions"].items() if version]
    command = f"`{document['command']}`"
    return ", ".join([host["gpu"] or host["cpu"], *driver, *versions, source_of(document), document["date"], command])


def source_of(document: Mapping[str, Any]) -> str:
    """The commit of a recorded file, and whether what is measured had been changed since."""
    commit, dirty = document["commit"], document["dirty"]
    changes = {True: " with changes", False: "", None: " (changes unknown)"}[dirty]
    return f"commit {commit[:12]}{changes}" if commit else "commit unknown"


def read_recording(path: Path, workload: str) -> Recording:
    """A recorded file, checked. Raises `RosecourseError` if it is damaged, or of another workload or format."""
    return read_sealed(path, "recorded", workload, FORMAT, remedy_of(workload), Recording.of)


def recording_of(workload: str, gpu: str | None = None, folder: Path = RESULTS) -> Recording | None:
    """The recording of a workload, or None where there is none; gpu and folder are those of `results_file`.

    Raises `RosecourseError` for a file that is damaged.
    """
    path = results_file(f"{workload}.json", gpu, folder)
    return None if path is None else read_recording(path, workload)
