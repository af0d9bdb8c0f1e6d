"""A workload: what is asked of an engine, and one measured run of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ..config import SamplingParams
from ..engine import InferenceEngine
from ..scheduler import OfflineScheduler, OnlineScheduler, SchedulerStats, fifo
from ..session import InferenceSession, Prompt, SessionTimes
from ..streaming import SchedulerManager, TokenStream


@dataclass(frozen=True)
class Workload:
    """Requests and the way they arrive.

    prompts: texts are tokenised while the clock runs, token ids are not (the articles' `--pretok`).
    submit_interval: seconds between scheduled arrivals; 0 is all at once.
    tokenize_workers: threads that tokenise and submit; 0 is the submitting thread itself.
    """

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    max_batch_size: int | None = None
    prefill_max_batch_size: int | None = None
    admission: Callable[..., int] = fifo
    submit_interval: float = 0.0
    tokenize_workers: int = 0


@dataclass
class Run:
    """What one run gave. Times are seconds of `time.perf_counter`."""

    start: float
    total_seconds: float
    times: list[SessionTimes]
    completions: list[list[int]]
    stats: SchedulerStats

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.completions))

    @classmethod
    def of(cls, start: float, sessions: list[InferenceSession], stats: SchedulerStats) -> Run:
        """The run of finished sessions; it ends with the last token."""
        end = max(session.times.tokens[-1] for session in sessions)
        times = [session.times for session in sessions]
        return cls(start, end - start, times, [session.completion_ids for session in sessions], stats)


def run_scheduler(engine: InferenceEngine, workload: Workload, kind: type[OnlineScheduler] = OnlineScheduler) -> Run:
    """All requests arrive at once; a scheduler (`OnlineScheduler` or `OfflineScheduler`) steps until they are done."""
    scheduler = _scheduler(engine, workload, kind)
    start = time.perf_counter()
    with _mapper(workload) as each:
        sessions = list(each(lambda prompt: engine.new_session(prompt, workload.params), workload.prompts))
    for session in sessions:
        session.times.submitted = start
        scheduler.submit(session)
    scheduler.run()
    return Run.of(start, sessions, scheduler.stats)


def run_offline(engine: InferenceEngine, workload: Workload) -> Run:
    """Like `run_scheduler`, in static batches."""
    return run_scheduler(engine, workload, OfflineScheduler)


def run_streaming(engine: InferenceEngine, workload: Workload) -> Run:
    """Requests arrive at their scheduled times, whatever the engine does; a thread steps, and each stream is read.

    A request counts as submitted at its scheduled arrival: an arrival that comes late because the machine was busy
    is waiting time (else a slow engine would look better; "coordinated omission").
    """
    scheduler = _scheduler(engine, workload, OnlineScheduler)
    start = time.perf_counter()

    def submit(arrival: tuple[int, Prompt]) -> TokenStream:
        number, prompt = arrival
        return manager.submit(prompt, workload.params, scheduled=start + number * workload.submit_interval)

    def arrivals() -> Iterator[tuple[int, Prompt]]:
        for number, prompt in enumerate(workload.prompts):
            time.sleep(max(0.0, start + number * workload.submit_interval - time.perf_counter()))
            yield number, prompt

    with SchedulerManager(scheduler) as manager, _mapper(workload) as each:
        streams = list(each(submit, arrivals()))
        for stream in streams:
            for _ in stream:
                pass
    return Run.of(start, [stream.session for stream in streams], scheduler.stats)


def _scheduler(engine: InferenceEngine, workload: Workload, kind: type[OnlineScheduler]) -> OnlineScheduler:
    return kind(
        engine,
        max_batch_size=workload.max_batch_size,
        prefill_max_batch_size=workload.prefill_max_batch_size,
        admission=workload.admission,
    )


@contextmanager
def _mapper(workload: Workload) -> Iterator[Callable[..., Iterator]]:
    """What tokenises and submits: `map` in this thread, or in as many as the workload has workers."""
    if workload.tokenize_workers == 0:
        yield map
    else:
        with ThreadPoolExecutor(workload.tokenize_workers) as pool:
            yield pool.map
