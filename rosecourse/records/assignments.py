"""What is to be recorded: a workload, the rungs that are measured under it, and the engine that each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..config import EngineConfig, SamplingParams
from ..lessons import LESSONS, Lesson
from ..lessons.workloads import ArticleWorkload
from ..measure.traffic import MixedTraffic, load_rate
from ..measure.workload import Workload
from .names import BURST, load_of, name_from, number_before
from .recordings import Recording

SMALL_VOCABULARY = 256  # token ids that every model of the course has
FIRST_UNDER_TRAFFIC = "059"  # the first lesson that is measured under mixed traffic too


@dataclass(frozen=True)
class Order:
    """What was asked for. prompt_ids: of every request of an article's workload; seed: of sampling.

    config: of the engines of the articles' workloads, except for their sizes; command: as it can be typed again; flags:
    the value of every flag. first: the rung to begin with, the `before` of the lesson after it; None: the whole ladder.
    """

    prompt_ids: Sequence[int]
    seed: int
    config: EngineConfig
    command: str
    flags: dict[str, Any]
    first: str | None = None

    @property
    def rungs(self) -> tuple[Lesson, ...]:
        """The rungs to measure."""
        return tuple(rung for rung in LESSONS if rung.number >= (self.first or ""))


@dataclass(frozen=True)
class Assignment:
    """A workload to record, under its name. benchmark: who runs it, a key of `measure.workload.RUNNERS`.

    sizes: what a recorded file's settings say of it.
    """

    name: str
    rungs: tuple[Lesson, ...]
    benchmark: str
    workload: Workload
    config: EngineConfig
    sizes: dict[str, Any]
    order: Order

    @property
    def settings(self) -> dict[str, Any]:
        """All that the figures depend on besides source and machine."""
        own = {"benchmark": self.benchmark, "prompt_tokens": len(self.workload.prompts[0]), "rate": None}
        return self.order.flags | asdict(self.config) | own | self.sizes


def article_assignment(work: ArticleWorkload, order: Order) -> Assignment:
    """A workload of an article's form, under which all rungs of the order are measured.

    An engine is no larger than it needs.
    """
    params = SamplingParams(max_new_tokens=work.max_new_tokens, stop_on_eos=False, seed=order.seed)
    workload = Workload.of(_prompts(work, order), params, samples=work.samples, readers=work.readers)
    largest = min(work.max_batch_size, work.num_requests * work.samples)
    longest = len(workload.prompts[0]) + work.max_new_tokens
    config = replace(order.config, max_batch_size=largest, max_seq_len=longest)
    sizes = {key: value for key, value in asdict(work).items() if key not in ("name", "benchmark")}
    name = name_from(work.name, order.first)
    return Assignment(name, order.rungs, work.benchmark, workload, config, sizes, order)


def _prompts(work: ArticleWorkload, order: Order) -> list[tuple[int, ...]]:
    """The order's prompt for all requests, or one of random tokens for each, drawn from the order's seed."""
    if not work.prompt_length:
        return [tuple(order.prompt_ids)] * work.num_requests
    tokens = np.random.default_rng(order.seed).integers(1, SMALL_VOCABULARY, (work.num_requests, work.prompt_length))
    return [tuple(row) for row in tokens.tolist()]


def burst_assignment(traffic: MixedTraffic, vocab_size: int, order: Order) -> Assignment:
    """Mixed traffic, all at once: the rungs of the lessons that are measured under it, and the one before them."""
    rungs = [rung for rung in order.rungs if rung.number >= (number_before(FIRST_UNDER_TRAFFIC) or "")]
    return _mixed(name_from(BURST, order.first), rungs, traffic, traffic.burst(vocab_size), {}, order)


def load_assignments(traffic: MixedTraffic, vocab_size: int, burst: Recording, order: Order) -> list[Assignment]:
    """Mixed traffic over time, for each lesson at a rate that the rung before it can bear, as the burst has shown."""
    tasks = []
    for rung in LESSONS:
        before = number_before(rung.number)
        if before is None or before not in burst.rungs:
            continue
        rate = load_rate(burst.rungs[before].seconds, traffic)
        rungs = [one for one in LESSONS if one.number in (before, rung.number)]
        workload = traffic.load(vocab_size, rate)
        tasks.append(_mixed(load_of(rung.number), rungs, traffic, workload, {"rate": rate}, order))
    return tasks


def _mixed(
    name: str,
    rungs: Sequence[Lesson],
    traffic: MixedTraffic,
    workload: Workload,
    more: dict[str, Any],
    order: Order,
) -> Assignment:
    sizes = {
        "num_requests": traffic.num_requests,
        "min_new_tokens": traffic.new_tokens[0],
        "max_new_tokens": traffic.new_tokens[1],
        "max_batch_size": traffic.max_batch_size,
        "traffic_seed": traffic.seed,
        **more,
    }
    return Assignment(name, tuple(rungs), "benchmark_scheduler", workload, traffic.config, sizes, order)
