"""A workload, what is asked of an engine; and a run, what one measurement of it gave."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..checks import require
from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..engine.offline import OfflineScheduler
from ..engine.scheduler import OnlineScheduler, SchedulerStats
from ..engine.streaming import SchedulerManager
from ..errors import RequestFailed
from ..request.session import InferenceSession, Prompt, SessionTimes, ends_of, samples_of
from .readers import READERS

MOST_READERS = 10_000  # threads
NAN = "error: its logits are NaN or infinite"


@dataclass(frozen=True)
class Request:
    """One request of a workload."""

    prompt: Prompt  # a text is tokenised while the clock runs, token ids are not (the articles' `--pretok`)
    params: SamplingParams
    arrival: float = 0.0  # when it is due, in seconds from the start of a run
    siblings: tuple[SamplingParams, ...] = ()  # of further samples of the prompt, which is computed once


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they arrive, and how an engine's scheduler takes them.

    tokenize_workers: threads that tokenise and submit; 0 is the submitting thread itself, and with `asyncio` the loop.
    readers: who reads the streams of `run_streaming`, a key of `measure.readers.READERS`.
    """

    requests: tuple[Request, ...]
    max_batch_size: int | None = None
    prefill_max_batch_size: int | None = None
    tokenize_workers: int = 0
    readers: str = "sequential"

    @classmethod
    def of(
        cls, prompts: Iterable[Prompt], params: SamplingParams, interval: float = 0.0, samples: int = 1, **settings: Any
    ) -> Workload:
        """Requests that differ in their prompts at most, at intervals of so many seconds. samples: of each prompt."""
        siblings = samples_of(params, samples)[1:]
        requests = (Request(prompt, params, n * interval, siblings) for n, prompt in enumerate(prompts))
        return cls(tuple(requests), **settings)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompt of every completion, in the order in which a run has them: siblings follow their request."""
        return [request.prompt for request in self.requests for _ in range(1 + len(request.siblings))]

    @property
    def params(self) -> list[SamplingParams]:
        """What is asked for in every completion, in the order of `prompts`."""
        return [params for request in self.requests for params in (request.params, *request.siblings)]


@dataclass
class Run:
    """What one run gave."""

    start: float  # when it began, on the clock of `times`: seconds of `time.perf_counter`
    total_seconds: float
    times: list[SessionTimes]  # of each request
    completions: list[list[int]] | None  # the token ids of each request
    stats: SchedulerStats

    @property
    def num_tokens(self) -> int:
        """Completion tokens of all requests."""
        return sum(len(times.tokens) for times in self.times)


def require_whole(
    asked: Sequence[SamplingParams],
    given: Sequence[Sequence[int]],
    reasons: Sequence[str | None],
    eos_token_id: Any = None,
) -> None:
    """Raise `RequestFailed` unless each request gave as many tokens as were asked for, or stopped where it was to.

    given: the token ids of each; reasons: why each ended, as a session's `finish_reason`.
    """
    failed = []
    for number, (params, ids) in enumerate(zip(asked, given, strict=False)):  # of one that failed no samples are made
        stopped = params.stop_on_eos and len(ids) > 0 and ids[-1] in ends_of(eos_token_id)
        if len(ids) != params.max_new_tokens and not stopped:
            why = NAN if reasons[number] == "error" else reasons[number]
            failed.append(f"request {number} gave {len(ids)} of {params.max_new_tokens} tokens ({why})")
    if failed:
        others = f", and {len(failed) - 1} more of {len(asked)} failed" if len(failed) > 1 else ""
        raise RequestFailed(f"{failed[0]}{others}: such a run gives no figure")


@contextmanager
def old_objects_spared() -> Iterator[None]:
    """In here Python's garbage collector looks at new objects alone.

    A full collection looks at every object of torch and transformers, for 200 to 300 ms. It comes in one run of many,
    and looks like a fault of what is measured. (vLLM freezes what is there when its engine has started.)
    """
    if gc.get_freeze_count() > 10_000:  # somebody has done it already; Python begins with some hundred
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@old_objects_spared()
def run_scheduler(engine: InferenceEngine, workload: Workload, kind: type[OnlineScheduler] = OnlineScheduler) -> Run:
    """A scheduler steps in this thread until all requests are done; those that are due are submitted between two steps.

    Raises `RequestFailed` unless each gave all that it was asked for; so do the other runners.
    """

    def tokenize(request: Request) -> tuple[InferenceSession, Request]:
        session = engine.new_session(request.prompt, request.params)
        session.times.submitted = start + request.arrival
        return session, request

    scheduler = _scheduler(engine, workload, kind)
    sessions: list[InferenceSession] = []
    arrivals = deque(workload.requests)
    start = time.perf_counter()
    with ThreadPoolExecutor(workload.tokenize_workers or 1) as pool:
        each = pool.map if workload.tokenize_workers else map
        while arrivals or scheduler.has_work:
            now, due = time.perf_counter() - start, []
            while arrivals and arrivals[0].arrival <= now:
                due.append(arrivals.popleft())
            for session, request in each(tokenize, due):
                scheduler.submit(session, request.siblings)
                sessions.append(session)
            if scheduler.has_work:
                scheduler.step()
            else:
                _sleep_until(start + arrivals[0].arrival)
    return _run_of(start, workload, [sample for session in sessions for sample in session.samples], scheduler)


def run_offline(engine: InferenceEngine, workload: Workload) -> Run:
    """Like `run_scheduler`, in static batches."""
    return run_scheduler(engine, workload, OfflineScheduler)


@old_objects_spared()
def run_streaming(engine: InferenceEngine, workload: Workload) -> Run:
    """Requests arrive at their scheduled times, whatever the engine does; a thread steps, and each stream is read.

    A request counts as submitted at its scheduled arrival: what comes late because the machine was busy has waited
    (else a slow engine would look better; "coordinated omission"). Raises `ConfigError` for siblings.
    """

    def as_they_come() -> Iterator[Request]:
        for request in workload.requests:
            _sleep_until(start + request.arrival)
            yield request

    def arrive(submit: Callable[..., Any]) -> list[Any]:
        each = pool.map if workload.tokenize_workers else map
        return list(each(lambda one: submit(one.prompt, one.params, start + one.arrival), as_they_come()))

    several = any(request.siblings for request in workload.requests)
    require(not several, "a stream has one sample: measure requests with siblings by run_scheduler")
    scheduler = _scheduler(engine, workload, OnlineScheduler)
    start = time.perf_counter()
    with (
        ThreadPoolExecutor(MOST_READERS, "rosecourse-reader") as threads,  # they start when they are needed
        SchedulerManager(scheduler, max_waiting=None) as manager,
        ThreadPoolExecutor(workload.tokenize_workers or 1) as pool,
    ):
        sessions = READERS[workload.readers](manager, threads, arrive)
    return _run_of(start, workload, sessions, scheduler)


def _run_of(start: float, workload: Workload, sessions: Sequence[InferenceSession], scheduler: OnlineScheduler) -> Run:
    """The run that made the sessions of a workload; it ends with the last token, when its reader has it."""
    given, times = [session.completion_ids for session in sessions], [session.times for session in sessions]
    reasons = [session.finish_reason for session in sessions]
    require_whole(workload.params, given, reasons, scheduler.engine.eos_token_id)
    ends = [one.tokens[-1] for one in times]
    if workload.readers != "sequential":  # of which only one reads at a time, when most tokens are long there
        ends += [one.read[-1] for one in times if one.read]
    return Run(start, max(ends) - start, times, given, scheduler.stats)


def _scheduler(engine: InferenceEngine, workload: Workload, kind: type[OnlineScheduler]) -> OnlineScheduler:
    return kind(engine, max_batch_size=workload.max_batch_size, prefill_max_batch_size=workload.prefill_max_batch_size)


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:  # to sleep for no time would hand Python's lock to the engine after each request
        time.sleep(left)


Runner = Callable[[InferenceEngine, Workload], Run]

# By the name of the command that measures it.
RUNNERS: dict[str, Runner] = {"benchmark_scheduler": run_scheduler, "benchmark_streaming": run_streaming}
