"""Comparing ways to do the same work: interleaved runs in one process, and ratios with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from ..config import EngineConfig, is_count, require, require_a, shown
from ..engine import InferenceEngine
from ..errors import RosecourseError
from ..lessons import LESSONS, Lesson
from ..models.gpt2 import GPT2
from .metrics import per_request, percentiles, throughput
from .report import device_name
from .workload import Run, Workload, run_scheduler

Sample = TypeVar("Sample")
NO_DIFFERENCE = "no difference measurable here"
# The 95 % interval of a median needs six samples, and five are nearly enough: of fewer, even the whole range is left
# by the true median in more than 12 % of cases, so that nothing is claimed.
FEWEST_PAIRS = 5


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval, in the unit of its samples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio(Interval):
    """before / after of a time: how many times faster `after` is, with a 95 % bootstrap interval."""

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"

    @property
    def verdict(self) -> str:
        """What may be said of it."""
        if self.low > 1.0:
            return "faster"
        return "slower" if self.high < 1.0 else NO_DIFFERENCE


def interleave_all(works: Sequence[Callable[[], Sample]], rounds: int, progress: bool = False) -> list[list[Sample]]:
    """Run all of them `rounds` times, in the order 0 1 .. n n .. 1 0 0 1 .., so that a drift of the machine meets all.

    Each callable does the work once and returns its sample. The first round warms up and does not count. Returns the
    samples of each.
    """
    samples: list[list[Sample]] = [[] for _ in works]
    for number in tqdm(range(rounds + 1), desc="rounds", disable=not progress, leave=False):
        for which in range(len(works))[:: 1 if number % 2 == 0 else -1]:
            samples[which].append(works[which]())
    return [found[1:] for found in samples]


def interleave(
    before: Callable[[], Sample], after: Callable[[], Sample], pairs: int, progress: bool = False
) -> tuple[list[Sample], list[Sample]]:
    """`interleave_all` of two: in the order A B B A A B ..., the first pair not counted."""
    first, second = interleave_all((before, after), pairs, progress)
    return first, second


def median_interval(samples: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Interval:
    """The median, and the interval in which it lies in 95 % of resamplings (Efron's percentile bootstrap)."""
    values = np.asarray(samples)
    chosen = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    low, high = np.percentile(np.median(values[chosen], axis=1), [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


def ratio(before: Sequence[float], after: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Ratio:
    """The median of the pairs' ratios before / after, and the interval in which it lies in 95 % of resamplings."""
    found = median_interval(np.asarray(before) / np.asarray(after), resamples, seed)
    return Ratio(found.value, found.low, found.high)


@dataclass(frozen=True)
class Samples:
    """The counted runs of one engine. name: such as `before`, or the number of a lesson."""

    name: str
    runs: list[Run]

    @property
    def seconds(self) -> list[float]:
        """What each run took, in all."""
        return [run.total_seconds for run in self.runs]

    @property
    def throughputs(self) -> list[float]:
        """Completion tokens a second of each run."""
        return [throughput(run.num_tokens, run.total_seconds) for run in self.runs]

    @property
    def throughput(self) -> Interval:
        """The median over the runs, tokens/s, with its interval."""
        return median_interval(self.throughputs)

    @property
    def itl_ms(self) -> np.ndarray:
        """Every inter-token latency of every request of every run, float64, milliseconds."""
        return 1e3 * np.asarray(per_request(run.times for run in self.runs)["itl"], dtype=float)

    @property
    def itl_percentiles_ms(self) -> tuple[float, float, float]:
        """p50, p95 and p99 of the pooled inter-token latencies, in milliseconds."""
        p50, p95, p99 = percentiles(self.itl_ms)
        return p50, p95, p99

    @property
    def itl_tail(self) -> float:
        """p99 / p50 of the pooled inter-token latencies: 1.0 is a stream without a stall."""
        p50, _, p99 = self.itl_percentiles_ms
        return p99 / p50

    @property
    def itl_along_steps_ms(self) -> np.ndarray:
        """Milliseconds before each token of the first request but its first; the median over the runs at each.

        What is noise goes with the median, what belongs to a position (a new block) stays.
        """
        return 1e3 * np.median([np.diff(run.times[0].tokens) for run in self.runs], axis=0)

    @property
    def steady_tail(self) -> float:
        """p99 / p50 of `itl_along_steps_ms`: the stalls that come at the same positions in every run."""
        p50, _, p99 = percentiles(self.itl_along_steps_ms)
        return p99 / p50

    def summary(self) -> dict[str, float]:
        """Medians over the runs and pooled percentiles: the rows of a table."""
        p50, p95, p99 = self.itl_percentiles_ms
        return {
            "throughput (tokens/s)": self.throughput.value,
            "TPOT p50 (ms)": 1e3 * percentiles(per_request(run.times for run in self.runs)["tpot"])[0],
            "ITL p50 (ms)": p50,
            "ITL p95 (ms)": p95,
            "ITL p99 (ms)": p99,
            "ITL p99/p50": self.itl_tail,
        }


@dataclass(frozen=True)
class Conditions:
    """What was measured, and on what. tokens: completion tokens of a run; prompt_tokens: of the first request."""

    requests: int
    tokens: int
    prompt_tokens: int
    block_size: int
    rounds: int
    model: str
    dtype: str
    device: str  # with the number of threads, for a CPU
    torch: str

    def __str__(self) -> str:
        each = f" x {self.tokens // self.requests} tokens" if self.tokens % self.requests == 0 else ""
        work = f"{self.requests} requests{each}" + ("" if each else f", {self.tokens} tokens")
        runs = f"1 warm-up and {self.rounds} counted runs of each, interleaved"
        return f"{work}; {runs}; {self.model}, {self.dtype}; {self.device}; torch {self.torch}"


@dataclass(frozen=True)
class Comparison:
    """Two engines under one workload: the same tokens, and the runs of each, in pairs."""

    before: Samples
    after: Samples
    conditions: Conditions

    @property
    def provenance(self) -> str:
        """One line that belongs under each table and picture: workload, runs, model, device and versions."""
        return str(self.conditions)

    @property
    def speedup(self) -> Ratio:
        """How many times the throughput; the tokens are the same, so also how many times less time it all takes."""
        return ratio(self.before.seconds, self.after.seconds)

    @property
    def tail_ratio(self) -> Ratio:
        """ITL p99/p50 before / after, run by run: above 1.0, the tail is shorter after."""
        before, after = ([Samples(s.name, [run]).itl_tail for run in s.runs] for s in (self.before, self.after))
        return ratio(before, after)

    @property
    def steady_tail_ratio(self) -> Ratio:
        """`steady_tail` before / after, with whole pairs of runs resampled: less noise in it than in `tail_ratio`."""
        before, after = self.before, self.after
        chosen = np.random.default_rng(0).integers(0, len(before.runs), size=(1_000, len(before.runs)))
        found = [
            Samples("", [before.runs[i] for i in pairs]).steady_tail
            / Samples("", [after.runs[i] for i in pairs]).steady_tail
            for pairs in chosen
        ]
        low, high = np.percentile(found, [2.5, 97.5])
        return Ratio(before.steady_tail / after.steady_tail, float(low), float(high))

    def table(self) -> pd.DataFrame:
        """Medians over the runs, and pooled percentiles, before and after. Its `attrs` hold the provenance."""
        table = pd.DataFrame({"before": self.before.summary(), "after": self.after.summary()})
        table.attrs["provenance"] = self.provenance
        return table

    def claim(self, found: Ratio, above: str, below: str) -> str:
        """What may be said of a ratio: `above` or `below` 1.0, no difference, or nothing, for want of pairs."""
        pairs = len(self.before.runs)
        if pairs < FEWEST_PAIRS:
            word = f"too few pairs to tell, take {FEWEST_PAIRS} or more"
        else:
            word = {"faster": above, "slower": below}.get(found.verdict, found.verdict)
        return f"{word} ({found} over {pairs} interleaved pair{'s' if pairs > 1 else ''})"

    def verdict(self, name: str) -> str:
        """One sentence on what may be said of `name`."""
        return f"{name}: {self.claim(self.speedup, 'faster', 'slower')}"

    def sentences(self, name: str) -> list[str]:
        """What the numbers say of `name`, and no more: throughput, inter-token latency, and the provenance."""
        before, after = self.before, self.after
        (b50, _, b99), (a50, _, a99) = before.itl_percentiles_ms, after.itl_percentiles_ms
        rates = f"{before.throughput.value:,.0f} tokens/s before, {after.throughput.value:,.0f} after"
        gaps = f"p50 {b50:.2f} ms before, {a50:.2f} ms after; p99 {b99:.2f} and {a99:.2f} ms"
        tails = f"{before.itl_tail:.2f} before, {after.itl_tail:.2f} after"
        return [
            f"{self.verdict(name)}: {rates}.",
            f"ITL {gaps} (N = {len(after.itl_ms):,}).",
            f"ITL p99/p50 {tails}: {self.claim(self.tail_ratio, 'a shorter tail', 'a longer tail')}.",
            f"{self.provenance}.",
        ]


@dataclass(frozen=True)
class Ladder:
    """All rungs under one workload: the same tokens, and the runs of each, in rounds. titles: of the lessons."""

    rungs: list[Samples]
    titles: list[str]
    conditions: Conditions

    @property
    def provenance(self) -> str:
        """One line that belongs under each table and picture: workload, runs, model, device and versions."""
        return str(self.conditions)

    @property
    def speedups(self) -> list[Ratio]:
        """How many times the throughput of the first rung, for each rung; the first is 1.0 by definition."""
        return [ratio(self.rungs[0].seconds, rung.seconds) for rung in self.rungs]

    def table(self) -> pd.DataFrame:
        """One row for each rung. Its `attrs` hold the provenance."""
        found = zip(self.rungs, self.titles, self.speedups, strict=True)
        rows = {rung.name: _ladder_row(rung, title, speedup) for rung, title, speedup in found}
        table = pd.DataFrame.from_dict(rows, orient="index")
        table.attrs["provenance"] = self.provenance
        return table


def _ladder_row(rung: Samples, title: str, speedup: Ratio) -> dict[str, str | float]:
    summary = rung.summary()
    wanted = ("ITL p50 (ms)", "ITL p99 (ms)", "ITL p99/p50")
    return {
        "lesson": title,
        "throughput (tokens/s)": summary["throughput (tokens/s)"],
        "ratio to the first": speedup.value,
        "ratio, low": speedup.low,
        "ratio, high": speedup.high,
        **{name: summary[name] for name in wanted},
    }


def compare(
    before: InferenceEngine,
    after: InferenceEngine,
    workload: Workload,
    pairs: int = 5,
    run: Callable[[InferenceEngine, Workload], Run] = run_scheduler,
    progress: bool = False,
) -> Comparison:
    """Equal tokens first, then interleaved runs. Raises `RosecourseError` when the tokens differ.

    run: `run_scheduler`, `run_offline` or `run_streaming` of `bench.workload`.
    """
    (one, other), conditions = _measure({"before": before, "after": after}, workload, pairs, run, progress)
    return Comparison(one, other, conditions)


def compare_ladder(
    model: GPT2,
    workload: Workload,
    rounds: int = 5,
    config: EngineConfig | None = None,
    rungs: Sequence[Lesson] = LESSONS,
    run: Callable[[InferenceEngine, Workload], Run] = run_scheduler,
    progress: bool = False,
) -> Ladder:
    """Like `compare`, with an engine for each rung, as it is after its lesson; all share the model's weights."""
    engines = {rung.number: InferenceEngine(model, config, rung.after) for rung in rungs}
    samples, conditions = _measure(engines, workload, rounds, run, progress)
    return Ladder(samples, [rung.title for rung in rungs], conditions)


def _measure(
    engines: Mapping[str, InferenceEngine],
    workload: Workload,
    rounds: int,
    run: Callable[[InferenceEngine, Workload], Run],
    progress: bool,
) -> tuple[list[Samples], Conditions]:
    require(is_count(rounds), f"{shown(rounds)} runs of each: give 1 or more")
    require_a(Workload, workload, "workload")
    for name, engine in engines.items():
        require_a(InferenceEngine, engine, name)
    expected: list[list[list[int]]] = []  # the completions of every run, in the order of the runs

    def work(engine: InferenceEngine) -> Run:
        found = run(engine, workload)
        expected.append(found.completions)
        if expected[-1] != expected[0]:
            raise RosecourseError("the engines give different tokens: a comparison of times would mean nothing")
        return found

    found = interleave_all([lambda engine=engine: work(engine) for engine in engines.values()], rounds, progress)
    samples = [Samples(name, runs) for name, runs in zip(engines, found, strict=True)]
    return samples, _conditions(next(iter(engines.values())), workload, samples[0].runs[0], rounds)


def _conditions(engine: InferenceEngine, workload: Workload, run: Run, rounds: int) -> Conditions:
    return Conditions(
        requests=len(run.completions),
        tokens=run.num_tokens,
        prompt_tokens=len(engine.tokenize(workload.prompts[0])),
        block_size=engine.config.block_size,
        rounds=rounds,
        model=engine.model.name,
        dtype=str(engine.model.dtype).removeprefix("torch."),
        device=device_name(engine.model.device),
        torch=torch.__version__,
    )
