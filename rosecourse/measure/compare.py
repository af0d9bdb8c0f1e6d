"""Comparing ways to do the same work: interleaved runs in one process, and ratios with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from ..checks import require
from ..config import EngineConfig
from ..engine.engine import InferenceEngine
from ..errors import RequestFailed, RosecourseError
from ..lessons import LESSONS, Lesson
from ..models.shape import Model
from .metrics import UNITS
from .provenance import device_name
from .samples import Samples, figure_name
from .stats import Ratio, interleave_all, ratio
from .workload import Run, Runner, Workload, run_scheduler, run_streaming

Figures = Callable[[Samples], list[float]]  # of each run
SAME = "the same engine twice"  # what tables and plots call the control

# The rows of a table: metric and statistic.
HEADLINES = [(metric, "p50") for metric in ("total throughput", "decode throughput", "TPOT", "TTFT")]
HEADLINES += [("ITL", statistic) for statistic in ("p50", "p95", "p99")]


@dataclass(frozen=True)
class Conditions:
    """What was measured, and on what."""

    requests: int
    tokens: int  # completion tokens of a run
    prompt_tokens: int  # of the first request
    block_size: int
    rounds: int
    model: str
    dtype: str
    device: str  # with the number of threads, for a CPU
    torch: str
    same_tokens: bool = True  # in float16 rounding may differ where the batches do

    @property
    def work(self) -> str:
        """How many requests, and how many tokens each, in the mean."""
        return f"{self.requests} requests x {self.tokens / self.requests:.4g} tokens"

    def __str__(self) -> str:
        runs = f"1 warm-up and {self.rounds} counted runs of each, interleaved"
        tokens = "" if self.same_tokens else "; some tokens differ, as batches and rounding do"
        return f"{self.work}; {runs}; {self.model}, {self.dtype}{tokens}; {self.device}; torch {self.torch}"


@dataclass(frozen=True)
class Comparison:
    """Two engines under one workload: the runs of each, in rounds, measured here or recorded.

    control: the engine before once more, in the same rounds; it may be empty. A recording of the first lesson has no
    runs before it: NaN stands for their figures and for every ratio.
    """

    before: Samples
    after: Samples
    conditions: Conditions
    control: Samples = field(default=Samples("control", []), kw_only=True)

    @property
    def provenance(self) -> str:
        """One line that belongs under each table and picture: workload, runs, model, device and versions."""
        return str(self.conditions)

    @property
    def sides(self) -> list[Samples]:
        """Before and after; for the first lesson only after."""
        return [side for side in (self.before, self.after) if len(side)]

    @property
    def pairs(self) -> int:
        """How many runs before and after were made in turns."""
        return min(len(self.before), len(self.after))

    def ratio(self, metric: str, statistic: str = "p50") -> Ratio:
        """How many times better `after` is in a metric of `UNITS`: more throughput, or less of any time."""
        return self.ratio_of(lambda side: side.each(metric, statistic), UNITS[metric] == "tokens/s")

    def ratio_of(self, figures: Figures, more_is_better: bool = False) -> Ratio:
        """The same for any figures of a side's runs, with the control's."""

        def against(side: Samples) -> Ratio:
            both = figures(self.before), figures(side)
            return ratio(*(both[::-1] if more_is_better else both))

        if not len(self.before):
            return ratio([], [])
        return replace(against(self.after), control=against(self.control) if len(self.control) else None)

    @property
    def speedup(self) -> Ratio:
        """How many times the throughput; the tokens are the same, so also how many times less time it all takes."""
        return self.ratio("total time")

    def row(self, metric: str, statistic: str = "p50") -> tuple[float, float, str]:
        """One row of the table: before, after (each the median over its runs), and how many times better."""
        before, after = self.before.typical(metric, statistic), self.after.typical(metric, statistic)
        return before, after, str(self.ratio(metric, statistic)) if len(self.before) else ""

    def table(self) -> pd.DataFrame:
        """The rows of `HEADLINES`; a control has a column of its own, the ratio of `before` to itself."""
        rows = {f"{figure_name(*one)} ({UNITS[one[0]]})": self.row(*one) for one in HEADLINES}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after", "times better"])
        if len(self.control):
            table[SAME] = [str(self.ratio(*one).control) for one in HEADLINES]
        table.attrs["provenance"] = self.provenance
        return table

    def around_boundaries(self) -> pd.DataFrame:
        """The median milliseconds before a token of the first request, by the step that made it; a column a side."""
        gaps = pd.DataFrame({f"{side.name} (ms)": side.itl_along_steps_ms for side in self.sides})
        place = (gaps.index + self.conditions.prompt_tokens) % self.conditions.block_size
        steps = ["a block begins", "the step after", "all others"]
        return gaps.groupby(np.minimum(place, 2)).median().set_axis(steps)

    def claim(self, better: Ratio) -> str:
        """What may be said of a ratio: faster, slower, no difference, or nothing where pairs are too few."""
        control_decides = replace(better, control=None).verdict != better.verdict
        twice = f"; {SAME}: {better.control}" if control_decides else ""
        return f"{better.verdict_over(self.pairs)} ({better} over {self.pairs} interleaved pairs{twice})"

    def verdict(self, name: str) -> str:
        """What may be said of the throughput of `name`."""
        return f"{name}: {self.claim(self.speedup)}"

    def effect(self, metric: str = "TPOT", statistic: str = "p50") -> str:
        """One sentence on a figure: where, before, after, and what may be said of it."""
        before, after = (
            f"{side.typical(metric, statistic):{',.0f' if UNITS[metric] == 'tokens/s' else '.2f'}} {UNITS[metric]}"
            for side in (self.before, self.after)
        )
        where, claim = f"{self.conditions.device}, {self.conditions.work}", self.claim(self.ratio(metric, statistic))
        return f"{where}: {figure_name(metric, statistic)} {before} before, {after} after: {claim}."

    def sentences(self, name: str) -> list[str]:
        """What the numbers say of `name`, and no more: the verdict, inter-token latency and the provenance."""
        gaps = [self.effect("ITL", statistic) for statistic in ("p50", "p99")]
        return [f"{self.verdict(name)}.", *gaps, f"{self.provenance}."]


@dataclass(frozen=True)
class Ladder:
    """All rungs under one workload, in the same rounds, and perhaps the first once more. titles: of the lessons."""

    rungs: list[Samples]
    titles: list[str]
    conditions: Conditions
    control: Samples = field(default=Samples("control", []), kw_only=True)

    @property
    def provenance(self) -> str:
        """One line that belongs under each table and picture: workload, runs, model, device and versions."""
        return str(self.conditions)

    @property
    def speedups(self) -> list[Ratio]:
        """How many times the throughput of the first rung, for each rung; the first is 1.0 by definition."""
        first = self.rungs[0].each("total time")
        same = ratio(first, self.control.each("total time")) if len(self.control) else None
        return [replace(ratio(first, rung.each("total time")), control=same) for rung in self.rungs]

    def table(self) -> pd.DataFrame:
        """One row for each rung: its throughput, and its ratio to the first."""
        table = pd.DataFrame({"lesson": self.titles}, index=[rung.name for rung in self.rungs])
        table["throughput (tokens/s)"] = [rung.throughput.value for rung in self.rungs]
        table["ratio to the first"] = [str(one) for one in self.speedups]
        table.attrs["provenance"] = self.provenance
        return table


def compare(
    before: InferenceEngine, after: InferenceEngine, workload: Workload, pairs: int = 5, runner: Runner = run_scheduler
) -> Comparison:
    """Measure two engines in interleaved runs, and the one before a second time as the control.

    Raises `RequestFailed`, which names the engine, for a run in which a request did not give all that it was asked for,
    and `RosecourseError` as soon as their tokens differ: in float16 only as far as rounding cannot be the reason, and
    `conditions.same_tokens` says whether it showed. runner: one of `measure.workload`.
    """
    return compare_with({"before": before, "after": after}, workload, pairs, runner)[0]


def compare_with(
    engines: Mapping[str, InferenceEngine], workload: Workload, pairs: int = 5, runner: Runner = run_scheduler
) -> tuple[Comparison, dict[str, Samples]]:
    """Like `compare`, with further engines in the same rounds. engines: `before`, `after`, and the others by name."""
    samples, conditions = _measure({**engines, "control": engines["before"]}, workload, pairs, runner)
    by_name = {side.name: side for side in samples}
    before, after, control = (by_name.pop(name) for name in ("before", "after", "control"))
    return Comparison(before, after, conditions, control=control), by_name


def compare_ladder(
    model: Model,
    workload: Workload,
    rounds: int = 5,
    config: EngineConfig | None = None,
    rungs: Sequence[Lesson] = LESSONS,
    runner: Runner = run_scheduler,
    control: Lesson | None = None,
) -> Ladder:
    """Like `compare`, with an engine for each rung over one model. control: the first rung, to measure it twice."""
    named = {rung.number: rung for rung in rungs} | ({"control": control} if control else {})
    engines = {name: InferenceEngine(model, config, rung.after) for name, rung in named.items()}
    samples, conditions = _measure(engines, workload, rounds, runner)
    found = Ladder(samples[: len(rungs)], [rung.title for rung in rungs], conditions)
    return replace(found, control=samples[-1]) if control else found


def _measure(
    engines: Mapping[str, InferenceEngine], workload: Workload, rounds: int, runner: Runner
) -> tuple[list[Samples], Conditions]:
    require(rounds >= 1, f"{rounds} runs of each: give 1 or more")
    seen: list[Run] = []

    def work(name: str, engine: InferenceEngine) -> Run:
        try:
            run = runner(engine, workload)
        except RequestFailed as error:
            raise RequestFailed(f"{name}: {error}") from error
        seen.append(run)
        _require_same_work(engine, workload, runner, seen[0], run)
        return run

    runs_of_each = interleave_all([partial(work, *one) for one in engines.items()], rounds)
    samples = [Samples(name, runs) for name, runs in zip(engines, runs_of_each, strict=True)]
    conditions = conditions_of(next(iter(engines.values())), workload, seen[0], rounds)
    return samples, replace(conditions, same_tokens=all(run.completions == seen[0].completions for run in seen))


def _require_same_work(engine: InferenceEngine, workload: Workload, runner: Runner, first: Run, run: Run) -> None:
    """Raise `RosecourseError` for other tokens than the first run's, where rounding cannot be the reason."""
    # In float16 rounding may differ where the batches do: with arrivals over time, or prefixes from a run before.
    at_once = runner is not run_streaming and all(request.arrival == 0 for request in workload.requests)
    exact = engine.model.dtype == torch.float32 or (at_once and engine.prefix_cache is None)
    one, other = ([len(times.tokens) for times in each.times] for each in (first, run))
    if one != other or (exact and run.completions != first.completions):
        raise RosecourseError("the engines give different tokens: a comparison of times would mean nothing")


def conditions_of(engine: InferenceEngine, workload: Workload, run: Run, rounds: int) -> Conditions:
    """Of a comparison, from one of its runs."""
    return Conditions(
        requests=len(run.times),
        tokens=run.num_tokens,
        prompt_tokens=len(engine.tokenize(workload.prompts[0])),
        block_size=engine.config.block_size,
        rounds=rounds,
        model=engine.model.name,
        dtype=str(engine.model.dtype).removeprefix("torch."),
        device=device_name(engine.model.device),
        torch=torch.__version__,
    )
