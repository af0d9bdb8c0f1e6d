"""Comparing ways to do the same work: interleaved runs in one process, and ratios with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from ..checks import is_count, require, require_a, shown
from ..config import EngineConfig
from ..engine.engine import InferenceEngine
from ..errors import RequestFailed, RosecourseError
from ..lessons import LESSONS, Lesson
from ..models.shape import Model
from .holding import Holding, Lent, all_kept, kept
from .metrics import UNITS
from .provenance import device_name
from .samples import Samples, figure_name
from .stats import Ratio, interleave_all, ratio
from .workload import Run, Runner, Workload, run_scheduler

Figures = Callable[[Samples], list[float]]  # of each run
SAME = "the same engine twice"  # what tables and plots call the control

# The rows of a table: metric and statistic.
HEADLINES = [
    ("total throughput", "p50"),
    ("decode throughput", "p50"),
    ("TPOT", "p50"),
    ("ITL", "p50"),
    ("ITL", "p95"),
    ("ITL", "p99"),
    ("TTFT", "p50"),
]


@dataclass(frozen=True)
class Conditions:
    """What was measured, and on what.

    tokens: completion tokens of a run; prompt_tokens: of the first request.
    """

    requests: int
    tokens: int
    prompt_tokens: int
    block_size: int
    rounds: int
    model: str
    dtype: str
    device: str  # with the number of threads, for a CPU
    torch: str
    same_tokens: bool = True  # in float16 rounding may differ where the batches do

    @property
    def work(self) -> str:
        """How many requests, and how many tokens each."""
        if self.tokens % self.requests == 0:
            return f"{self.requests} requests x {self.tokens // self.requests} tokens"
        return f"{self.requests} requests, {self.tokens} tokens"

    def __str__(self) -> str:
        runs = f"1 warm-up and {self.rounds} counted runs of each, interleaved"
        tokens = "" if self.same_tokens else "; some tokens differ, as batches and rounding do"
        return f"{self.work}; {runs}; {self.model}, {self.dtype}{tokens}; {self.device}; torch {self.torch}"


@dataclass(frozen=True)
class Comparison:
    """Two engines under one workload: the runs of each, in rounds, measured here or recorded.

    control: the engine before once more, in the same rounds; empty where it was not measured twice. A recording of the
    first lesson has no runs before it: NaN stands for their figures and for every ratio.
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
    def all_sides(self) -> list[Samples]:
        """Before, its control, and after: those that have runs."""
        return [side for side in (self.before, self.control, self.after) if len(side)]

    @property
    def pairs(self) -> int:
        """How many runs before and after were made in turns."""
        return min(len(self.before), len(self.after))

    def ratio(self, metric: str, statistic: str = "p50") -> Ratio:
        """How many times better `after` is in a metric of `UNITS`: the ratio of the sides' `typical` figures.

        More throughput is better, and less of any time. Each run gives one figure: percentiles are over its requests.
        """
        return self.ratio_of(lambda side: side.each(metric, statistic), UNITS[metric] == "tokens/s")

    def ratio_of(self, figures: Figures, more_is_better: bool = False) -> Ratio:
        """The same for any figures of a side's runs, with the control's."""

        def against(side: Samples) -> Ratio:
            before, other = figures(self.before), figures(side)
            return ratio(other, before) if more_is_better else ratio(before, other)

        if not len(self.before):
            return ratio([], [])
        return replace(against(self.after), control=against(self.control) if len(self.control) else None)

    @property
    def speedup(self) -> Ratio:
        """How many times the throughput; the tokens are the same, so also how many times less time it all takes."""
        return self.ratio("total time")

    @property
    def tail_ratio(self) -> Ratio:
        """ITL p99/p50 before / after, run by run: above 1.0, the tail is shorter after."""
        return self.ratio_of(lambda side: side.itl_tails)

    def row(self, metric: str, statistic: str = "p50") -> tuple[float, float, str]:
        """One row of the table: before, after (each the median over its runs), and how many times better."""
        before, after = self.before.typical(metric, statistic), self.after.typical(metric, statistic)
        return before, after, str(self.ratio(metric, statistic)) if len(self.before) else ""

    def table(self) -> pd.DataFrame:
        """Before and after, each the median over its runs; `times better` is their ratio, with its 95 % interval.

        A control has a column of its own, the same ratio of `before` to itself. The `attrs` hold the provenance.
        """
        rows = {f"{figure_name(*one)} ({UNITS[one[0]]})": self.row(*one) for one in HEADLINES}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after", "times better"])
        if len(self.control):
            table[SAME] = [str(self.ratio(*one).control) for one in HEADLINES]
        table.attrs["provenance"] = self.provenance
        return table

    def claim(self, better: Ratio, above: str, below: str) -> str:
        """What may be said of a ratio: `above` or `below` 1.0, no difference, or nothing where pairs are too few."""
        over = f"{better} over {self.pairs} interleaved pair{'s' if self.pairs > 1 else ''}"
        return f"{better.verdict_over(self.pairs, above, below)} ({over})"

    def effect(self, metric: str = "TPOT", statistic: str = "p50") -> str:
        """One sentence on a figure: where, before, after, how many times better, and what may be said of it."""
        digits, unit = (",.0f" if UNITS[metric] == "tokens/s" else ".2f"), UNITS[metric]
        before, after = (f"{side.typical(metric, statistic):{digits}} {unit}" for side in (self.before, self.after))
        better = self.ratio(metric, statistic)
        said = better.verdict_over(self.pairs)
        where, name = self.conditions.device, figure_name(metric, statistic)
        return f"{where}, {self.conditions.work}: {name} {before} before, {after} after: {better}, {said}."

    def verdict(self, name: str) -> str:
        """One sentence on what may be said of `name`."""
        return f"{name}: {self.claim(self.speedup, 'faster', 'slower')}"

    def sentences(self, name: str) -> list[str]:
        """What the numbers say of `name`, and no more: throughput, inter-token latency and the provenance."""
        before, after = self.before, self.after
        b50, a50, b99, a99 = (side.typical("ITL", p) for p in ("p50", "p99") for side in (before, after))
        rates = f"{before.throughput.value:,.0f} tokens/s before, {after.throughput.value:,.0f} after"
        gaps = f"p50 {b50:.2f} ms before, {a50:.2f} ms after; p99 {b99:.2f} and {a99:.2f} ms"
        tails = " before, ".join(f"{np.median(side.itl_tails):.2f}" for side in (before, after))
        return [
            f"{self.verdict(name)}: {rates}.",
            f"ITL {gaps} (medians over the runs).",
            f"ITL p99/p50 {tails} after: {self.claim(self.tail_ratio, 'a shorter tail', 'a longer tail')}.",
            f"{self.provenance}.",
        ]


@dataclass(frozen=True)
class Ladder:
    """All rungs under one workload: the same tokens, and the runs of each, in rounds. titles: of the lessons.

    control: the first rung once more, in the same rounds, where it was measured twice.
    """

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
        return self.ratios("total time")

    @property
    def gains(self) -> list[Ratio]:
        """How many times the throughput of the rung before, for each rung but the first."""
        seconds = [rung.seconds for rung in self.rungs]
        return [ratio(before, after) for before, after in pairwise(seconds)]

    def ratios(self, metric: str) -> list[Ratio]:
        """How many times less time each rung takes than the first. metric: a time of `UNITS` in seconds."""
        first = self.rungs[0].each(metric)
        same = ratio(first, self.control.each(metric)) if len(self.control) else None
        return [replace(ratio(first, rung.each(metric)), control=same) for rung in self.rungs]

    def table(self, metric: str = "total time") -> pd.DataFrame:
        """One row for each rung: its throughput and gaps, or the median of another time, and the ratio to the first.

        metric: as in `ratios`. The `attrs` hold the provenance.
        """
        rows = {}
        for rung, title, times in zip(self.rungs, self.titles, self.ratios(metric), strict=True):
            whole = metric == "total time"
            figure = (
                ("throughput (tokens/s)", rung.throughput.value)
                if whole
                else (f"{metric} (ms)", 1e3 * rung.typical(metric))
            )
            ratios = {"ratio to the first": times.value, "ratio, low": times.low, "ratio, high": times.high}
            gaps = {f"ITL {p} (ms)": rung.typical("ITL", p) for p in ("p50", "p99") if whole}
            rows[rung.name] = {"lesson": title, figure[0]: figure[1]} | ratios | gaps
        table = pd.DataFrame.from_dict(rows, orient="index")
        table.attrs["provenance"] = self.provenance
        return table


def compare(
    before: InferenceEngine,
    after: InferenceEngine,
    workload: Workload,
    pairs: int = 5,
    runner: Runner = run_scheduler,
) -> Comparison:
    """Measure two engines in interleaved runs, and the one before a second time as the control.

    Raises `RequestFailed`, which names the engine, for a run in which a request did not give all that it was asked for,
    and `RosecourseError` as soon as their tokens differ, or only the numbers of these.

    In float16 that holds for requests that arrive all at once and share no prefixes: timed arrivals and a prefix cache
    that has been filled by an earlier run make other batches, whose rounding differs; `conditions.same_tokens` says
    whether it showed.

    runner: `run_scheduler`, `run_offline` or `run_streaming` of `measure.workload`.
    """
    engines = {"before": before, "after": after, "control": before}
    for name, engine in engines.items():
        require_a(InferenceEngine, engine, name)
    sides, conditions = _measure({name: kept(e) for name, e in engines.items()}, workload, pairs, runner)
    one, other, control = sides
    return Comparison(one, other, conditions, control=control)


def compare_ladder(
    model: Model,
    workload: Workload,
    rounds: int = 5,
    config: EngineConfig | None = None,
    rungs: Sequence[Lesson] = LESSONS,
    runner: Runner = run_scheduler,
    holding: Holding = all_kept,
    control: Lesson | None = None,
) -> Ladder:
    """Like `compare`, with an engine for each rung, as it is after its lesson; all share the model's weights.

    holding: whether all engines are kept, or one is there at a time; see `measure.holding`. control: the first rung,
    where it is to be measured twice.
    """

    def lent(rung: Lesson) -> Lent:
        return holding(lambda: InferenceEngine(model, config, rung.after), lambda engine: runner(engine, workload))

    engines = {rung.number: lent(rung) for rung in rungs} | ({"control": lent(control)} if control else {})
    samples, conditions = _measure(engines, workload, rounds, runner)
    found = Ladder(samples[: len(rungs)], [rung.title for rung in rungs], conditions)
    return replace(found, control=samples[-1]) if control else found


def _measure(
    engines: Mapping[str, Lent],
    workload: Workload,
    rounds: int,
    runner: Runner,
) -> tuple[list[Samples], Conditions]:
    require(is_count(rounds), f"{shown(rounds)} runs of each: give 1 or more")
    require_a(Workload, workload, "workload")
    witness = _Witness(workload, rounds)

    def work(name: str, lent: Lent) -> Run:
        try:
            with lent() as engine:
                run = runner(engine, workload)
                run.require_whole(workload.params, engine.eos_token_id)
                witness.see(engine, run)
        except RequestFailed as error:
            raise RequestFailed(f"{name}: {error}") from error
        return run

    runs_of_each = interleave_all([partial(work, *one) for one in engines.items()], rounds)
    samples = [Samples(name, runs) for name, runs in zip(engines, runs_of_each, strict=True)]
    return samples, witness.conditions


class _Witness:
    """Sees every run of a comparison, and holds it to the tokens of the first. It keeps no engine."""

    def __init__(self, workload: Workload, rounds: int) -> None:
        self.workload, self.rounds = workload, rounds
        self.first: Run | None = None

    def see(self, engine: InferenceEngine, run: Run) -> None:
        """Raise `RosecourseError` for other tokens than the first run's, where rounding cannot be the reason."""
        if self.first is None:
            self.first, self.conditions = run, conditions_of(engine, self.workload, run, self.rounds)
        if run.completions == self.first.completions:
            return
        # In float16 rounding may differ where the batches do: with timed arrivals, or prefixes from a run before.
        batches_alike = self.workload.all_at_once and engine.prefix_cache is None
        if batches_alike or engine.model.dtype == torch.float32:
            raise RosecourseError("the engines give different tokens: a comparison of times would mean nothing")
        if [len(times.tokens) for times in self.first.times] != [len(times.tokens) for times in run.times]:
            raise RosecourseError(
                "the runs differ in how many tokens a request gave: a comparison of times would mean nothing; ask for "
                "all of its tokens, with stop_on_eos=False"
            )
        self.conditions = replace(self.conditions, same_tokens=False)


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
