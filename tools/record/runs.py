"""Record every rung of the ladder under a workload, in rounds, so that a drift of the machine meets all of them.

    PYTHONPATH=. python tools/record/runs.py measure --workloads A,C-one,B --out parts   # on the machine with the GPU
    PYTHONPATH=. python tools/record/runs.py gather parts                              # into data/results/<gpu>/

Each round runs every rung once, forwards and then backwards, and each run begins on the cores that are quiet; the rungs
of `TWICE` run a second time in it, as the control. Rounds that warm up come first and do not count: one, and two where
prompts are cached. In them some steps are watched: a recording of a lesson whose path did not run is refused. Each
round is written as soon as it is measured, and a later call goes on from there, so keep to one machine. A round is
measured again if its runs, in the median over the rungs, take more than `STALLED` times as long as their rungs usually
do: at most `AGAIN` of them, and `runs.json` says how many.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from cores import settle
from paths import Seen, trouble, watched_steps
from tasks import Task, from_first, gpu_folder, task_of

import rosecourse as rc
from rosecourse.engine.engine import InferenceEngine
from rosecourse.measure.compare import conditions_of
from rosecourse.measure.floor import bytes_per_run, copy_bandwidth, share_of_floor
from rosecourse.measure.metrics import PERCENTILES, per_request
from rosecourse.measure.provenance import device_name, provenance
from rosecourse.measure.samples import OF_A_RUN, figure_name
from rosecourse.measure.stats import order_of_round
from rosecourse.measure.workload import Run
from rosecourse.records.files import write_whole
from rosecourse.records.results import RESULTS
from rosecourse.records.runs import BURST, COLUMNS, LOAD, STATISTICS, WORKLOADS

TWICE = ("061", "071")  # the last rung whose host launches each kernel, and the last rung
STALLED, AGAIN = 1.15, 3


class Part:
    """The files of one workload in the folder of parts: `NAME.csv`, `NAME.gaps.csv` and `NAME.json`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.runs_path, self.gaps_path, self.about_path = (
            folder / f"{name}{end}" for end in (".csv", ".gaps.csv", ".json")
        )
        there = self.runs_path.exists()
        self.rows = pd.read_csv(self.runs_path, dtype={"lesson": str}) if there else pd.DataFrame(columns=COLUMNS)
        self.gaps = pd.read_csv(self.gaps_path, dtype={"lesson": str}) if there else pd.DataFrame()
        self.about: dict[str, Any] = json.loads(self.about_path.read_text()) if there else {}

    @property
    def done(self) -> int:
        """The rounds so far."""
        return int(self.rows["round"].nunique())

    def stalled(self) -> list[int]:
        """The rounds in which the machine was slower than it usually is."""
        slower = self.rows["total time"] / self.rows.groupby(["lesson", "twice"])["total time"].transform("median")
        of_round = slower.groupby(self.rows["round"]).median()
        return sorted(of_round[of_round > STALLED].index)

    def drop(self, number: int) -> None:
        """Leave a round out."""
        self.rows, self.gaps = (table[table["round"] != number] for table in (self.rows, self.gaps))
        self.about["rounds measured again"] += 1

    def add(self, rows: list[dict[str, Any]], gaps: list[pd.DataFrame]) -> None:
        """Add a round and write all files."""
        self.rows = pd.DataFrame([*self.rows.to_dict("records"), *rows], columns=COLUMNS)
        self.gaps = pd.concat([self.gaps, *gaps], ignore_index=True)
        write_whole(self.runs_path, self.rows.to_csv(index=False).encode())
        write_whole(self.gaps_path, self.gaps.to_csv(index=False).encode())
        write_whole(self.about_path, json.dumps(self.about, indent=1).encode())


class Recorder:
    """Measures one workload into its part."""

    def __init__(self, task: Task, model: Any, part: Part, bandwidth: float) -> None:
        self.task, self.model, self.part, self.bandwidth = task, model, part, bandwidth
        twice = [rung for rung in task.rungs if rung.number in TWICE]
        self.places = [(rung, 0) for rung in task.rungs] + [(rung, 1) for rung in twice]
        self.engines = [InferenceEngine(model, task.config, rung.after) for rung, _ in self.places]
        self.paths: dict[str, Seen] = {}

    def round(self, number: int, warm_up: bool = False) -> None:
        """Run every rung once. number: of the round, from 1 on; one that warms up leaves nothing."""
        rows: list[dict[str, Any]] = []
        gaps: list[pd.DataFrame] = []
        for place in order_of_round(len(self.places), number):
            settle()
            rung, twice = self.places[place]
            engine = self.engines[place]
            with watched_steps(engine, rung) if warm_up and not twice else nullcontext() as seen:
                run = self.task.runner(engine, self.task.workload)
            if seen is not None:
                self.paths[rung.number] = seen
            self._see(place, run)
            key = {"workload": self.task.name, "lesson": rung.number, "twice": twice, "round": number}
            rows.append(key | self._figures(run))
            if not twice:
                milliseconds = np.round(1e3 * np.diff(run.times[0].tokens), 4)
                gaps.append(pd.DataFrame({"lesson": rung.number, "round": number, "milliseconds": milliseconds}))
        if not warm_up:
            self.part.about["date"] = datetime.now(UTC).isoformat(timespec="seconds")
            self.part.add(rows, gaps)

    def _see(self, place: int, run: Run) -> None:
        """Hold the tokens to those of the first run; in float16 rounding may differ, and the part says so."""
        about, digest = self.part.about, hashlib.sha256(json.dumps(run.completions).encode()).hexdigest()
        if "conditions" not in about:
            conditions = vars(conditions_of(self.engines[place], self.task.workload, run, 0))
            about |= {"conditions": conditions, "tokens sha256": digest}
        if digest != about["tokens sha256"]:
            if self.model.dtype == torch.float32:
                raise SystemExit(f"{self.task.name}: the tokens of {self.places[place][0].number} differ")
            about["conditions"]["same_tokens"] = False

    def _figures(self, run: Run) -> dict[str, float]:
        """The columns of `runs.csv` after the keys."""
        requests, found = per_request([run.times]), {}
        for metric, statistics in STATISTICS.items():
            for statistic in statistics:
                name = figure_name(metric, statistic)
                found[name] = OF_A_RUN[metric](run) if metric in OF_A_RUN else _of_requests(requests, metric, statistic)
        size = bytes_per_run(self.model, self.task.workload, run)
        share = share_of_floor(size, run.stats.decode_seconds, self.bandwidth)
        counts = (run.stats.prefill_seconds, run.stats.decode_steps, run.stats.preemptions)
        more = dict(zip(COLUMNS[-4:], (share, *counts), strict=True))
        return {name: float(f"{value:.7g}") for name, value in (found | more).items()}


def _of_requests(requests: dict[str, list[float]], metric: str, statistic: str) -> float:
    values = 1e3 * np.asarray(requests[metric.lower().replace(" ", "_")])
    if not len(values):
        return float("nan")
    return float(values.mean() if statistic == "mean" else np.percentile(values, PERCENTILES[statistic]))


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--workloads", default="A,C-one,B", help=f"Of {', '.join(WORKLOADS)}, in this order.")
@click.option("--rounds", default=9, help="Rounds that count.")
@click.option("--minutes", default=float("inf"), help="Begin no round that would end later; call again.")
@click.option("--out", type=Path, required=True, help="The folder of parts.")
@click.option("--commit", help="The source's commit, where there is no git.")
def measure(workloads: str, rounds: int, minutes: float, out: Path, commit: str | None) -> None:
    """Measure rounds of each workload, as many as are missing."""
    end = time.monotonic() + 60 * minutes
    cuda = torch.cuda.is_available()
    model = rc.random_model("gpt2") if cuda else rc.load_model(device="cpu")
    bandwidth = float(copy_bandwidth(model.device))
    out.mkdir(parents=True, exist_ok=True)
    for name in workloads.split(","):
        part = Part(out, name)
        burst = Part(out, BURST).rows.query("lesson == '061' and twice == 0")["total time"] if name == LOAD else None
        task = from_first(task_of(name, model, burst))
        part.about = head_of(name, task, model, bandwidth, commit, rounds) | part.about
        if not record(Recorder(task, model, part, bandwidth), rounds, end):
            print(f"{name}: {part.done} of {rounds} rounds are there; call again", flush=True)
            return
        print(f"{name}: {rounds} rounds, {part.about['rounds measured again']} of them measured again", flush=True)


def record(recorder: Recorder, rounds: int, end: float) -> bool:
    """Measure the rounds that are missing, and stalled ones again; False if the time does not suffice."""
    part = recorder.part
    if part.done >= rounds and "paths" in part.about:
        return True
    took = 0.0
    warm_ups = 2 if recorder.task.config.prefix_cache else 1
    for _ in range(warm_ups):
        start = time.monotonic()
        recorder.round(0, warm_up=True)
        took = time.monotonic() - start
    if recorder.model.device.type == "cuda" and (wrong := trouble(part.name, recorder.paths)):
        raise SystemExit("\n".join(wrong))
    part.about["paths"] = dict(sorted(recorder.paths.items()))
    while part.done < rounds:
        missing = min(set(range(1, rounds + 1)) - set(part.rows["round"]))
        if time.monotonic() + took > end:
            return False
        start = time.monotonic()
        recorder.round(missing)
        took = time.monotonic() - start
        for number in part.stalled() if part.done == rounds else []:
            if part.about["rounds measured again"] < AGAIN:
                part.drop(number)
    part.about["conditions"]["rounds"] = rounds
    part.add([], [])
    return True


def head_of(name: str, task: Task, model: Any, bandwidth: float, commit: str | None, rounds: int) -> dict[str, Any]:
    """What `runs.json` says of a workload, but for its conditions."""
    found = provenance()
    return {
        "device": device_name(model.device),
        "driver": found["host"]["driver"],
        "host": {key: found["host"][key] for key in ("cpu", "cores", "threads", "os")},
        "versions": found["versions"],
        "commit": commit or found["commit"] or "unknown",
        "command": f"python tools/record/runs.py measure --workloads {name} --rounds {rounds}",
        "copy_bytes_per_second": bandwidth,
        "requests a second": None if name != LOAD else len(task.workload.requests) / task.workload.requests[-1].arrival,
        "stalled": f"a round is measured again whose runs take {STALLED:g} times as long as usual, in the median",
        "rounds measured again": 0,
    }


@main.command()
@click.argument("parts", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=Path, default=RESULTS, help="The folder of all GPUs' folders.")
def gather(parts: Path, out: Path) -> None:
    """Put whole parts into runs.csv, gaps.csv and runs.json; a workload that is there already is replaced."""
    names = [path.stem for path in sorted(parts.glob("*.json"))]
    found = {name: Part(parts, name) for name in names if name in WORKLOADS}
    whole = {name: part for name, part in found.items() if part.about["conditions"]["rounds"] == part.done}
    folder = out / gpu_folder(next(iter(whole.values())).about["device"])
    folder.mkdir(parents=True, exist_ok=True)
    about = json.loads((folder / "runs.json").read_text()) if (folder / "runs.json").exists() else {}
    about |= {name: part.about for name, part in whole.items()}
    write_whole(folder / "runs.json", (json.dumps(about, indent=1) + "\n").encode())
    for file, tables in (
        ("runs.csv", [p.rows for p in whole.values()]),
        ("gaps.csv", list(map(typical, whole.values()))),
    ):
        there = (
            pd.read_csv(folder / file, dtype={"lesson": str})
            if (folder / file).exists()
            else pd.DataFrame(columns=["workload"])
        )
        kept = there[~there["workload"].isin(whole)]
        write_whole(folder / file, pd.concat([kept, *tables] if len(kept) else tables).to_csv(index=False).encode())
    print(f"{folder}: {', '.join(whole)}")


def typical(part: Part) -> pd.DataFrame:
    """The rows of `gaps.csv`: at each token the median over the runs."""
    gaps = part.gaps.assign(token=part.gaps.groupby(["lesson", "round"]).cumcount() + 2)
    rows = gaps.groupby(["lesson", "token"])["milliseconds"].median().round(4).reset_index()
    return rows.assign(workload=part.name)[["workload", "lesson", "token", "milliseconds"]]


if __name__ == "__main__":
    main()
