"""Workload D, mixed traffic: what equal prompts do not show.

Prompts of 5 to 200 tokens, many short and few long, and completions of 16 to 256, on a laptop to 128; some prompts
begin alike, some requests are forked, and the pool is too small for the largest batch, so that it runs dry at times. In
one form all requests arrive at once (`burst`), in the other they arrive at random (`load`, a Poisson process) at a
share of the rate that the engine before a lesson has shown under the burst. A request counts from its scheduled
arrival, however busy the engine is ("coordinated omission").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..config import EngineConfig, SamplingParams
from ..engine.engine import InferenceEngine
from .compare import Comparison, compare
from .metrics import Limits
from .stats import Ratio, ratio
from .workload import Request, Workload

PROMPT_TOKENS = (5, 200)  # the shortest and the longest
BLOCK_SIZE = 16  # vLLM's default; the articles have 64
SHARED_PREFIXES, PREFIX_TOKENS = 3, 128
ONE_IN_PREFIXED, ONE_IN_FORKED = 4, 8
LOAD = 0.8  # of the capacity of the engine before the lesson
TTFT_STEPS, GAP_STEPS = 5, 3  # the limits of a good request, in median gaps of the engine before under the burst
FEW_GOOD = 0.05  # where the median runs of both sides have no larger share of good requests, goodput says nothing


@dataclass(frozen=True)
class MixedTraffic:
    """How many requests, and the engine that they are too many for.

    num_blocks: of the pool, per layer: fewer than `max_batch_size` long requests need. new_tokens: of the shortest
    completion and of the longest.
    """

    num_requests: int
    max_batch_size: int
    num_blocks: int
    new_tokens: tuple[int, int] = (16, 256)
    seed: int = 0

    def __str__(self) -> str:
        forks, (fewest, most) = len(self.params) - self.num_requests, self.new_tokens
        asked = f"{self.num_requests} requests and {forks} forks x {fewest} to {most} tokens"
        return f"{asked}, prompts of {PROMPT_TOKENS[0]} to {PROMPT_TOKENS[1]}, batch {self.max_batch_size} (mixed)"

    @property
    def config(self) -> EngineConfig:
        """Of the engines: a small pool, and prefixes shared."""
        longest = PROMPT_TOKENS[1] + self.new_tokens[1]
        return EngineConfig(
            block_size=BLOCK_SIZE,
            max_batch_size=self.max_batch_size,
            num_blocks=self.num_blocks,
            max_seq_len=longest,
            prefix_cache=True,
        )

    def burst(self, vocab_size: int) -> Workload:
        """All requests at once."""
        return self._workload(vocab_size, np.zeros(self.num_requests))

    def load(self, vocab_size: int, rate: float) -> Workload:
        """The same requests, arriving at random. rate: requests a second, on the average."""
        gaps = np.random.default_rng(self.seed).exponential(1 / rate, self.num_requests)
        return self._workload(vocab_size, np.cumsum(gaps))

    @property
    def params(self) -> list[SamplingParams]:
        """What is asked for in every completion: the same for every vocabulary, and however the requests arrive."""
        return self.burst(vocab_size=2).params

    def _workload(self, vocab_size: int, arrivals: np.ndarray) -> Workload:
        draw = np.random.default_rng(self.seed)  # lengths, the same for every vocabulary
        tokens = np.random.default_rng([self.seed, vocab_size])
        prefixes = tokens.integers(1, vocab_size, (SHARED_PREFIXES, PREFIX_TOKENS))
        requests = []
        for number, arrival in enumerate(arrivals):
            prompt = tokens.integers(1, vocab_size, _prompt_length(draw))
            if number % ONE_IN_PREFIXED == 0 and len(prompt) + PREFIX_TOKENS <= PROMPT_TOKENS[1]:
                prompt = np.concatenate([prefixes[draw.integers(SHARED_PREFIXES)], prompt])
            siblings = (self._params(draw),) if number % ONE_IN_FORKED == 0 else ()
            requests.append(Request(tuple(prompt.tolist()), self._params(draw), float(arrival), siblings))
        return Workload(tuple(requests))

    def _params(self, draw: np.random.Generator) -> SamplingParams:
        """Greedy: to sample in Python would take longer than the step."""
        most = int(draw.integers(*self.new_tokens, endpoint=True))
        return SamplingParams(max_new_tokens=most, stop_on_eos=False)


def _prompt_length(draw: np.random.Generator) -> int:
    """Each octave between the shortest and the longest is as likely as the next."""
    shortest, longest = np.log(PROMPT_TOKENS[0]), np.log(PROMPT_TOKENS[1] + 1)
    return int(np.exp(draw.uniform(shortest, longest)))


D = MixedTraffic(num_requests=128, max_batch_size=128, num_blocks=900)  # on a GPU
D_SMALL = MixedTraffic(num_requests=10, max_batch_size=16, num_blocks=52, new_tokens=(16, 128))  # on a laptop


@dataclass(frozen=True)
class TrafficComparison:
    """Two engines under mixed traffic: all at once, and at a load that both can bear.

    The load has requests at `LOAD` of the rate at which the burst had them served before; a fork is one of its own.
    """

    burst: Comparison
    load: Comparison

    @property
    def rate(self) -> float:
        """Requests a second under load, forks among them."""
        return LOAD * len(self.load.after.runs[0].times) / float(np.median(self.burst.before.seconds))

    @property
    def limits(self) -> Limits:
        """What a good request keeps to, the same for both: so many median gaps of the engine before, in the burst."""
        gap = self.burst.before.typical("ITL", "p50") / 1e3
        return Limits(ttft=TTFT_STEPS * gap, gap=GAP_STEPS * gap)

    @property
    def goodputs(self) -> list[list[float]]:
        """Good requests a second, before and after, of each run: the share that was good, of those that arrived."""
        return [[self.rate * share for share in side.shares_good(self.limits)] for side in self.load.sides]

    @property
    def goodput(self) -> Ratio:
        """How many times the good requests a second, after / before; NaN where a run had not one."""
        before, after = self.goodputs
        return ratio(after, before) if min(before + after) > 0 else ratio([], [])

    @property
    def prefill_ms(self) -> float:
        """The mean time that the scheduler spends in a prefill under load, before: the median over the runs.

        Requests that get their first tokens within a microsecond of each other have shared a prefill.
        """
        runs = self.load.before.runs
        prefills = [len({round(times.tokens[0], 6) for times in run.times}) for run in runs]
        return float(np.median([1e3 * run.stats.prefill_seconds / n for run, n in zip(runs, prefills, strict=True)]))

    def shares_said(self) -> list[str]:
        """How many requests are good under load and, where next to none are, why, and what to look at instead."""
        load, gap_ms = self.load, self.burst.before.typical("ITL", "p50")
        shares = [side.shares_good(self.limits) for side in (load.before, load.after)]
        median = " and ".join(f"{np.median(each):.0%}" for each in shares)
        worst = " and ".join(f"{min(each):.0%}" for each in shares)
        said = [
            f"A request is good if it keeps to {self.limits}: in the median run {median} (before and after) are, in "
            f"the worst {worst}."
        ]
        if max(float(np.median(each)) for each in shares) > FEW_GOOD:
            return said
        return [
            *said,
            "So next to no request is good, before or after, and the goodput says nothing. The limits are "
            f"{TTFT_STEPS} and {GAP_STEPS} times the median gap before, all at once: {gap_ms:.2f} ms. Decode steps "
            f"have become that short, and prefills have not: before, one takes {self.prefill_ms:.1f} ms on the "
            "average, and whoever is running waits for it. Look at the times themselves:",
            load.effect("TTFT", "p50"),
            load.effect("ITL", "p50"),
            load.effect("ITL", "p99"),
        ]

    def table(self) -> pd.DataFrame:
        """Three rows: tokens a second in the burst, goodput and ITL p99 under load; medians over the runs."""
        before, after = (float(np.median(goodputs)) for goodputs in self.goodputs)
        rows = {
            "burst: throughput (tokens/s)": self.burst.row("total throughput", "p50"),
            "load: goodput (requests/s)": (before, after, str(self.goodput)),
            "load: ITL p99 (ms)": self.load.row("ITL", "p99"),
        }
        return pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after", "times better"])

    def sentences(self, name: str) -> list[str]:
        """What may be said of `name` under mixed traffic."""
        load = self.load
        tail = load.claim(load.ratio("ITL", "p99"), "shorter", "longer")
        goodput = load.claim(self.goodput, "higher", "lower")
        if math.isnan(self.goodput.value):
            goodput = "has no ratio, because in some run no request was good"
        preempted = [sum(run.stats.preemptions for run in side.runs) for side in (self.burst.before, self.burst.after)]
        return [
            f"Mixed traffic, all at once: {self.burst.verdict(name)}.",
            f"At {self.rate:.1f} requests/s, {LOAD:.0%} of the capacity before: ITL p99 {tail}; goodput {goodput}.",
            *self.shares_said(),
            f"Preemptions in all bursts: {preempted[0]} before, {preempted[1]} after. {load.provenance}.",
        ]


def compare_traffic(
    before: InferenceEngine, after: InferenceEngine, traffic: MixedTraffic, pairs: int = 5
) -> TrafficComparison:
    """Measure two engines, made with the traffic's `config`, under a burst and then under `LOAD` of its rate."""
    vocab_size = before.model.shape.vocab_size
    burst = compare(before, after, traffic.burst(vocab_size), pairs)
    rate = load_rate(burst.before.seconds, traffic)
    return TrafficComparison(burst, compare(before, after, traffic.load(vocab_size, rate), pairs))


def load_rate(burst_seconds: list[float], traffic: MixedTraffic) -> float:
    """Arrivals a second: `LOAD` of those that an engine has served in bursts, which took so many seconds."""
    return LOAD * traffic.num_requests / float(np.median(burst_seconds))
