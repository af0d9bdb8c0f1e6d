"""When a thread that steps sleeps and hands over, and when the readers of its tokens read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ..config import EngineConfig
from ..decode.parts import Mailbox
from .workload import Run

Moments = Sequence[tuple[float, float]]  # begins and ends, in seconds of `time.perf_counter`


class NotedDelivery:
    """A delivery that notes when each of its hand-overs began and ended: `spans`, in seconds of `time.perf_counter`."""

    def __init__(self, delivery: Callable[[EngineConfig], Any], config: EngineConfig) -> None:
        self.delivery = delivery(config)
        self.spans: list[tuple[float, float]] = []

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        begin = time.perf_counter()
        self.delivery.hand_over(items)
        self.spans.append((begin, time.perf_counter()))

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
        self.delivery.flush()


def all_run_from(run: Run) -> float:
    """The moment at which the last request has its first token, in seconds of `time.perf_counter`."""
    return max(one.tokens[0] for one in run.times)


def full_rate(run: Run, whose: Literal["tokens", "read"] = "read") -> float:
    """Tokens/s, from the moment at which all requests run until the last token; `tokens` is the host's rate."""
    begin, moments = all_run_from(run), np.concatenate([getattr(one, whose) for one in run.times])
    return float((moments > begin).sum() / (moments.max() - begin))


def while_all_run(run: Run, spans: Moments) -> Moments:
    """Those that begin when all requests run."""
    begin = all_run_from(run)
    return [span for span in spans if span[0] > begin]


def lengths_ms(spans: Moments) -> np.ndarray:
    """float64 [spans], milliseconds."""
    return 1e3 * np.diff(np.array(spans), axis=1).ravel()


def shares_read(run: Run, slept: Moments, handed: Moments) -> tuple[float, float, float]:
    """Shares of the tokens read while all requests run: in a sleep, in a hand-over, and in all other time."""
    full = while_all_run(run, slept)
    moments = np.concatenate([one.read for one in run.times])
    moments = moments[(moments >= full[0][0]) & (moments <= full[-1][1])]
    in_sleeps, in_hand_overs = (
        float(sum(np.mean((moments >= begin) & (moments <= end)) for begin, end in spans)) for spans in (slept, handed)
    )
    return in_sleeps, in_hand_overs, 1 - in_sleeps - in_hand_overs
