"""A workload, what is asked of an engine; and a run, what one measurement of it gave."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from ..checks import is_count, require, shown
from ..config import SamplingParams
from ..decode.garbage import old_objects_spared
from ..engine.engine import InferenceEngine
from ..engine.offline import OfflineScheduler
from ..engine.queues import fifo
from ..engine.scheduler import OnlineScheduler, SchedulerStats
from ..engine.streaming import SchedulerManager
from ..errors import RequestFailed
from ..request.session import InferenceSession, Prompt, SessionTimes, samples_of
from .metrics import throughput
from .readers import READERS
from .whole_runs import Answer, require_read, require_whole


@dataclass(frozen=True)
class Request:
    """One request of a workload.

    prompt: a text is tokenised while the clock runs, token ids are not (the articles' `--pretok`).
    arrival: when it is due, in seconds from the start of a run.
    siblings: what further samples of the prompt are asked for, which is computed once (parallel sampling).
    """

    prompt: Prompt
    params: SamplingParams
    arrival: float = 0.0
    siblings: tuple[SamplingParams, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Requests, in the order in which they arrive, and how an engine's scheduler takes them.

    tokenize_workers: threads that tokenise and submit; 0 is the submitting thread itself.
    readers: who reads the streams of `run_streaming`, a key of `measure.readers.READERS`. With `asyncio` the event loop
    tokenises, whatever the workers.
    """

    requests: tuple[Request, ...]
    max_batch_size: int | None = None
    prefill_max_batch_size: int | None = None
    admission: Callable[..., int] = fifo
    tokenize_workers: int = 0
    readers: str = "sequential"

    def __post_init__(self) -> None:
        require(len(self.requests) > 0, "a workload of 0 requests: give 1 or more")
        known = isinstance(self.readers, str) and self.readers in READERS
        require(known, f"readers is {shown(self.readers)}: give one of {', '.join(READERS)}")

    @classmethod
    def of(
        cls,
        prompts: Iterable[Prompt],
        params: SamplingParams,
        interval: float = 0.0,
        samples: int = 1,
        **settings: Any,
    ) -> Workload:
        """Requests that differ in their prompts at most.

        interval: seconds between two arrivals; 0 is all at once. samples: of each prompt, see `samples_of`.
        """
        require(is_count(samples), f"samples is {shown(samples)}: give 1 or more")
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

    @property
    def all_at_once(self) -> bool:
        """Whether nothing depends on the time: then every run schedules the same batches."""
        return all(request.arrival == 0 for request in self.requests)


@dataclass
class Run:
    """What one run gave, measured here or read from a file.

    start: when it began, on the clock of `times`: seconds of `time.perf_counter`, 0 in a file.
    times: of each request, with a moment for each of its completion tokens.
    completions: the token ids of each request; None in a run from a file, which does not hold them.
    """

    start: float
    total_seconds: float
    times: list[SessionTimes]
    completions: list[list[int]] | None
    stats: SchedulerStats

    @property
    def num_tokens(self) -> int:
        """Completion tokens of all requests."""
        return sum(len(times.tokens) for times in self.times)

    def require_whole(self, asked: Sequence[SamplingParams], eos_token_id: int | Collection[int] | None = None) -> None:
        """Raise `RequestFailed` unless the run has these requests, and each gave all; as far as a run knows it."""
        here = len(self.times) if self.completions is None else min(len(self.times), len(self.completions))
        if here != len(asked):
            raise RequestFailed(f"{here} of {len(asked)} requests are there: such a run gives no figure")
        counts = [len(times.tokens) for times in self.times]
        answers = [Answer(params, count, count) for params, count in zip(asked, counts, strict=True)]
        if self.completions is not None:
            answers = [
                answer._replace(given=len(ids), last=ids[-1] if ids else None)
                for answer, ids in zip(answers, self.completions, strict=True)
            ]
        require_whole(answers, eos_token_id)

    @property
    def total_throughput(self) -> float:
        """Completion tokens a second of the whole run, the articles' Throughput(completion,total)."""
        return throughput(self.num_tokens, self.total_seconds)

    @property
    def decode_throughput(self) -> float:
        """Completion tokens a second of decode steps, the articles' Throughput(completion,decode)."""
        return throughput(self.num_tokens, self.stats.decode_seconds)

    @classmethod
    def of(
        cls, start: float, workload: Workload, sessions: Sequence[InferenceSession | None], scheduler: OnlineScheduler
    ) -> Run:
        """The run that made the sessions of a workload; it ends with the last token, when its reader has it.

        None is a session that was never made.

        Raises `RequestFailed` unless each gave all that the workload asks for.
        """
        answers = [Answer.of(params, session) for params, session in zip(workload.params, sessions, strict=True)]
        require_whole(answers, scheduler.engine.eos_token_id)
        made = [session for session in sessions if session is not None]
        end = max(session.times.tokens[-1] for session in made)
        if workload.readers != "sequential":  # of which only one reads at a time, when most tokens are long there
            end = max([end, *(session.times.read[-1] for session in made if session.times.read)])
        times = [session.times for session in made]
        return cls(start, end - start, times, [session.completion_ids for session in made], scheduler.stats)


class Arrival(NamedTuple):
    """A request and when it is due. scheduled: in seconds of `time.perf_counter`."""

    scheduled: float
    request: Request


@old_objects_spared()
def run_scheduler(engine: InferenceEngine, workload: Workload, kind: type[OnlineScheduler] = OnlineScheduler) -> Run:
    """A scheduler (`OnlineScheduler` or `OfflineScheduler`) steps in this thread until all requests are done.

    Requests whose scheduled arrival has come are submitted between two steps, and count as submitted at that time.
    Raises `RequestFailed` unless each gave all that it was asked for; so do the other runners.
    """

    def tokenize(arrival: Arrival) -> tuple[InferenceSession, Request]:
        session = engine.new_session(arrival.request.prompt, arrival.request.params)
        session.times.submitted = arrival.scheduled
        return session, arrival.request

    scheduler = _scheduler(engine, workload, kind)
    sessions: list[InferenceSession] = []
    start = time.perf_counter()
    arrivals = _arrivals(workload, start)
    with _mapper(workload) as each:
        while arrivals or scheduler.has_work:
            for session, request in each(tokenize, _due(arrivals)):
                scheduler.submit(session, request.siblings)
                sessions.append(session)
            if scheduler.has_work:
                scheduler.step()
            else:
                _sleep_until(arrivals[0].scheduled)
    made = [sample for session in sessions for sample in (*session.samples, *(None for _ in session.to_fork))]
    return Run.of(start, workload, made, scheduler)


def run_offline(engine: InferenceEngine, workload: Workload) -> Run:
    """Like `run_scheduler`, in static batches."""
    return run_scheduler(engine, workload, OfflineScheduler)


@old_objects_spared()
def run_streaming(engine: InferenceEngine, workload: Workload) -> Run:
    """Requests arrive at their scheduled times, whatever the engine does; a thread steps, and each stream is read.

    A request counts as submitted at its scheduled arrival: an arrival that comes late because the machine was busy
    is waiting time (else a slow engine would look better; "coordinated omission"). What a reader raises, except
    `LogitsError`, is raised here.
    """
    scheduler = _scheduler(engine, workload, OnlineScheduler)
    start = time.perf_counter()

    def as_they_come() -> Iterator[Arrival]:
        for arrival in _arrivals(workload, start):
            _sleep_until(arrival.scheduled)
            yield arrival

    def submit(arrival: Arrival) -> Any:
        return readers.submit(arrival.request.prompt, arrival.request.params, arrival.scheduled)

    several = any(request.siblings for request in workload.requests)
    require(not several, "a stream has one sample: measure requests with siblings by run_scheduler")
    with (
        SchedulerManager(scheduler, max_waiting=None) as manager,
        closing(READERS[workload.readers](manager)) as readers,
        _mapper(workload) as each,
    ):
        readers.start()
        sessions = readers.finish(list(each(submit, as_they_come())))
    run = Run.of(start, workload, sessions, scheduler)
    require_read(run.times)
    return run


def _arrivals(workload: Workload, start: float) -> deque[Arrival]:
    """The requests in the order in which they come."""
    return deque(Arrival(start + request.arrival, request) for request in workload.requests)


def _due(arrivals: deque[Arrival]) -> list[Arrival]:
    """Take the requests that are due."""
    now = time.perf_counter()
    return [arrivals.popleft() for _ in list(takewhile(lambda arrival: arrival.scheduled <= now, arrivals))]


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:  # to sleep for no time would hand Python's lock to the engine after each request
        time.sleep(left)


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


Runner = Callable[[InferenceEngine, Workload], Run]

# By the name of the command that measures it.
RUNNERS: dict[str, Runner] = {"benchmark_scheduler": run_scheduler, "benchmark_streaming": run_streaming}
