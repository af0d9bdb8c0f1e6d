"""Rungs that are measured here and now, with what a file says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..measure.compare import Ladder, compare_ladder
from ..measure.floor import bytes_per_run, share_of_runs
from ..measure.holding import Holding, all_kept
from ..measure.workload import RUNNERS, Runner
from ..models.shape import Model
from .assignments import Assignment
from .run_json import packed_run


@dataclass(frozen=True)
class MeasuredLadder(Ladder):
    """The rungs of an assignment, measured in turns.

    decode_bytes: for each rung, what the decode steps of each of its runs must at least read; bandwidth: bytes a second
    that the device's memory copies.
    """

    task: Assignment
    decode_bytes: list[list[int]] = field(repr=False)
    bandwidth: float

    @classmethod
    def of(
        cls,
        model: Model,
        task: Assignment,
        rounds: int,
        bandwidth: float,
        runner: Runner | None = None,
        holding: Holding = all_kept,
    ) -> MeasuredLadder:
        """Measure all rungs in `rounds` rounds after one that warms up; errors are those of `compare_ladder`.

        runner: None is that of the assignment's benchmark.
        """
        runner = RUNNERS[task.benchmark] if runner is None else runner
        found = compare_ladder(model, task.workload, rounds, task.config, task.rungs, runner, holding)
        sizes = [[bytes_per_run(model, task.workload, run) for run in rung.runs] for rung in found.rungs]
        return cls(found.rungs, found.titles, found.conditions, task, sizes, bandwidth)

    @property
    def shares_of_floor(self) -> list[float]:
        """Of each rung: the least time that its decode steps could take / the time that they took, the runs' median."""
        pairs = zip(self.rungs, self.decode_bytes, strict=True)
        return [share_of_runs(rung.runs, sizes, self.bandwidth) for rung, sizes in pairs]

    def table(self) -> pd.DataFrame:
        """One row for each rung, with its share of the floor. Its `attrs` hold the provenance."""
        table = super().table()
        table["share of the floor (%)"] = [100 * share for share in self.shares_of_floor]
        return table

    @property
    def lines(self) -> list[str]:
        """The table: a rung, its throughput, its ratios to the first and the rung before, its step over the floor."""
        names = [f"{rung.name} {title}" for rung, title in zip(self.rungs, self.titles, strict=True)]
        to_first = ["", *(times.shown(2) for times in self.speedups[1:])]
        told = ["", *(f"{gain}, {gain.verdict_over(self.conditions.rounds)}" for gain in self.gains)]
        over = [f"{1 / share:.3g}" for share in self.shares_of_floor]
        tokens_per_second = [f"{rung.throughput.value:,.0f}" for rung in self.rungs]
        heads = "rung", "tokens/s", "ratio to the first", "ratio to the rung before", "times the floor"
        table = [heads, *zip(names, tokens_per_second, to_first, told, over, strict=True)]
        sizes = [
            f"{side}{max(map(len, column))}" for side, column in zip("<><<>", zip(*table, strict=True), strict=True)
        ]
        lines = ["  ".join(f"{cell:{size}}" for cell, size in zip(row, sizes, strict=True)) for row in table]
        tokens = "same tokens on every rung" if self.conditions.same_tokens else "some tokens differ (rounding)"
        return [*lines, f"N: {self.conditions.tokens} tokens a run, {tokens}", f"On: {self.provenance}"]

    @property
    def document(self) -> dict[str, Any]:
        """Every raw sample of every run, in the form of a recording's runs (`run_json`)."""
        pairs = zip(self.rungs, self.decode_bytes, strict=True)
        runs = {rung.name: list(map(packed_run, rung.runs, sizes)) for rung, sizes in pairs}
        return {
            "settings": self.task.settings,
            "titles": {rung.number: rung.title for rung in self.task.rungs},
            "same_tokens": self.conditions.same_tokens,
            "copy_bytes_per_second": self.bandwidth,
            "rounds": self.conditions.rounds,
            "rungs": runs,
        }
