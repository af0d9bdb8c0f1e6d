"""How many tokens a second an engine makes, by how many read them and how."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..engine.scheduler import OnlineScheduler
from .stats import interleave_all

PROMPT = (5, 6, 7)


def unread_rate(engine: InferenceEngine, num_requests: int, steps: int) -> float:
    """Tokens/s of a scheduler that this thread steps, with nobody to read: behind the prefill.

    All requests start together, and each takes so many decode steps: two or more.
    """
    scheduler = OnlineScheduler(engine)
    asked = SamplingParams(max_new_tokens=steps + 1, stop_on_eos=False)
    for _ in range(num_requests):
        scheduler.submit(engine.new_session(PROMPT, asked))
    scheduler.step()
    begin, before = time.perf_counter(), scheduler.stats.decode_steps
    scheduler.run()
    return num_requests * (scheduler.stats.decode_steps - before) / (time.perf_counter() - begin)


def rates_by_readers(
    works: Mapping[str, Callable[[int], float]], counts: Sequence[int], rounds: int
) -> dict[str, dict[int, list[float]]]:
    """Rates of each work by the number of its readers, one for each round; all take turns, as in `interleave_all`."""
    keys = [(name, count) for count in counts for name in works]
    found = interleave_all([partial(works[name], count) for name, count in keys], rounds)
    rates = dict(zip(keys, found, strict=True))
    return {name: {count: rates[name, count] for count in counts} for name in works}
