"""Where the time of a decode step goes: each part timed from outside, while the engine runs as always."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..engine.engine import InferenceEngine
from ..request.session import InferenceSession


class Stopwatch:
    """Calls another callable and keeps the seconds of each call."""

    def __init__(self, work: Callable[..., Any], synchronize: Callable[[], None]) -> None:
        self._work = work
        self._synchronize = synchronize
        self.seconds: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._synchronize()
        start = time.perf_counter()
        result = self._work(*args, **kwargs)
        self._synchronize()
        self.seconds.append(time.perf_counter() - start)
        return result


@contextmanager
def stopwatches(engine: InferenceEngine) -> Iterator[dict[str, Stopwatch]]:
    """Put a stopwatch around each part of an engine's decode step, and take them off again.

    On CUDA a stopwatch waits for the device, so that a part's kernels count as its own. The sum is then more than what
    a step takes when host and device overlap.
    """
    cuda = engine.model.device.type == "cuda"
    step = engine.decode_step
    parts = {name: getattr(step, name) for name in step.stages}
    watches = {name: Stopwatch(part, torch.cuda.synchronize if cuda else lambda: None) for name, part in parts.items()}
    for name, watch in watches.items():
        setattr(step, name, watch)
    try:
        yield watches
    finally:
        for name, part in parts.items():
            setattr(step, name, part)


def decode_anatomy(engine: InferenceEngine, sessions: list[InferenceSession], steps: int) -> dict[str, list[float]]:
    """Decode `steps` steps of prefilled sessions. Returns each step's seconds by part, and `rest`: all around them."""
    whole = []
    with stopwatches(engine) as watches:
        for _ in range(steps):
            start = time.perf_counter()
            engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
            whole.append(time.perf_counter() - start)
    seconds = {name: watch.seconds for name, watch in watches.items()}
    seconds["rest"] = [total - sum(parts) for total, *parts in zip(whole, *seconds.values(), strict=True)]
    return seconds
