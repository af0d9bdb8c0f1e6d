"""Schedulers: which sessions are computed in the next step.

Continuous batching (a session joins when there is a place and leaves when it is done) is Orca's idea (OSDI 2022).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from ..checks import is_count, require, require_a, shown
from ..config import EngineConfig, SamplingParams
from ..decode import Batch
from ..errors import ConfigError, EngineBusy, KVCacheExhausted, RequestError, SchedulerClosed
from ..kv.buffers import index_tensor
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession, SessionTimes
from .core import EngineCore
from .model_runner import Landed
from .queues import Queue, Queues, fifo
from .rules import require_own, require_rule, require_siblings


@dataclass
class SchedulerStats:
    """Where a scheduler's time went."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    preemptions: int = 0


NewToken = tuple[InferenceSession, int]
TABLE = attrgetter("table")


class OnlineScheduler:
    """Continuous batching: each step admits what fits, prefills it, and decodes everything that was running.

    When no block is free the newest session is preempted: its blocks go, it waits at the front (a fork that was waiting
    stays where it is), and its K and V are computed again later. Not for several threads: `SchedulerManager` is.

    Several samples of one prompt (parallel sampling) are computed once: after the prefill they are forked off its
    session, and each takes its own first token from the same logits. From then on they are sessions like the others;
    those that find no place in the batch wait at the front.
    """

    def __init__(
        self,
        engine: EngineCore,
        *,
        max_batch_size: int | None = None,
        prefill_max_batch_size: int | None = None,
        admission: Callable[[Queue], int] = fifo,
    ) -> None:
        """max_batch_size: sessions decoded together; prefill_max_batch_size: prompts computed together.

        None is the engine's `max_batch_size`.
        """
        require_a(EngineConfig, getattr(engine, "config", None), "the config of the engine")
        require(callable(admission), f"admission is {shown(admission)}: give a function of the waiting sessions")
        most = engine.config.max_batch_size
        self.max_batch_size = most if max_batch_size is None else max_batch_size
        self.prefill_max_batch_size = self.max_batch_size if prefill_max_batch_size is None else prefill_max_batch_size
        if not is_count(self.max_batch_size) or self.max_batch_size > most:
            raise ConfigError(f"max_batch_size is {shown(max_batch_size)}: give 1 to {most}, the engine's own")
        if not is_count(self.prefill_max_batch_size):
            raise ConfigError(f"prefill_max_batch_size is {shown(prefill_max_batch_size)}: give 1 or more")
        self.engine, self.runner = engine, engine.runner
        self.ref = weakref.ref(self)  # by which its sessions know it
        self.manager_thread: threading.Thread | None = None  # of the SchedulerManager that steps it
        self.admission = admission
        self.queues = Queues(self.runner, self.max_batch_size)
        self.waiting, self.running = self.queues.waiting, self.queues.running
        self.stats = SchedulerStats()
        self.failed: list[InferenceSession] = []  # ended by an error of their own; whoever has read it may empty it
        self._new_tokens: list[NewToken] = []  # made, and not yet returned by a step
        self.before_landing: Callable[[], None] | None = None  # called when the host is about to wait for the device

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._new_tokens or self.queues.ended)

    def submit(self, session: InferenceSession, siblings: Sequence[SamplingParams] = ()) -> None:
        """Queue a session of `engine.new_session`, or a fork, which needs no prefill and goes on where it is.

        siblings: what further samples of a new session's prompt are asked for. They come to be with its first token,
        as `session.forks`; if it is cancelled before, none of them does.

        Raises `RequestError` for one that was submitted before, that is prefilled and has not taken its token, or that
        is another engine's, and `EngineBusy` where a `SchedulerManager` steps this scheduler.
        """
        with self.engine.guard:
            require_rule("submit", session, self.engine)
            require_siblings(session, siblings, self.engine)
            session.times.submitted = session.times.submitted or time.perf_counter()
            session.owner = self.ref
            session.siblings = tuple(siblings)
            self.waiting.append(session)
            if session.table is not None:
                self.queues.waiting_forks.append(session)

    def cancel(self, session: InferenceSession) -> None:
        """Stop a session, waiting or running; its blocks come back at once. No effect on one that has finished.

        Raises `RequestError` for one of another scheduler, and `EngineBusy` where a `SchedulerManager` steps this one.
        """
        require_a(InferenceSession, session, "session")
        require_own(session, self.engine)
        if self.manager_thread not in (None, threading.current_thread()):
            raise EngineBusy("a SchedulerManager steps this scheduler: cancel the stream, or close the manager first")
        if session.finished:
            if session in self.queues.ended:
                self.engine.settle()
            return
        if session.owner not in (None, self.ref):
            raise RequestError("the session is another scheduler's: cancel it there")
        with bookkeeping, self.engine.guard.lock:
            session.owner = None  # nobody's, so that its blocks can be given back at any time
            session.finish_reason = "cancelled"
            for queue in (self.waiting, self.running):
                queue.discard(session)
            try:
                if self.runner.is_in_flight(session):
                    self.runner.settle()
            finally:
                self.queues.free(session)

    def audit(self) -> None:
        """Raise `BlockError` unless every block is free, cached, or held by a session that waits or runs here."""
        self.engine.audit([*self.waiting, *self.running, *self.queues.ended])

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.has_work:
            bookkeeping.interruptible(self.step)

    def step(self) -> list[NewToken]:
        """One prefill, if something waits and fits, and one decode step. Returns the new tokens in order.

        A step that raises loses nothing: the sessions that it was computing wait at the front to be computed anew, and
        the next step also returns the tokens that this one had made. Only when blocks could not be given back every
        further step raises `SchedulerClosed`. An interrupt comes in the forward, or at the end of the step.
        """
        if (failure := self.queues.failure) is not None:
            kind = type(failure).__name__
            raise SchedulerClosed(
                f"KV blocks could not be given back ({kind}: {failure}): make a new engine and a new scheduler"
            ) from failure
        new_tokens: list[NewToken] = []
        try:
            with self.engine.guard:
                self._advance()
                new_tokens, self._new_tokens = self._new_tokens, []
                return new_tokens
        except BaseException:
            self._new_tokens = new_tokens or self._new_tokens  # an interrupt that waited: nobody has got them
            raise

    def take_new_tokens(self) -> list[NewToken]:
        """The tokens that no step has returned yet; none will."""
        new_tokens, self._new_tokens = self._new_tokens, []
        return new_tokens

    # -- the loop -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Schedule, launch, commit: for the prompts that are admitted, then for the sessions that ran before.

        The tokens that are committed are those of the step before, where the runner may be one step ahead.
        """
        running: Iterable[InferenceSession] = self.running
        if self.waiting:
            running = list(running)
            self._begin()
        start = time.perf_counter()
        batch = self.schedule(running)
        if batch.sessions:
            self.launch(batch)
            self.commit()
        elif not self.runner.pipeline.in_flight:
            return
        elif not any(map(self.runner.is_in_flight, runnable(self.running))):  # who has just begun goes on soon
            self.runner.settle()
        self.stats.decode_seconds += time.perf_counter() - start

    def schedule(self, running: Iterable[InferenceSession]) -> Batch:
        """Those of the running sessions that need one more step, and keep their blocks when the pool is dry.

        First steps in flight land, then others are preempted.
        """
        sessions = runnable(running)
        batch = Batch(sessions, list(map(TABLE, sessions)), self.ref)
        while not self.runner.kv.can_append(batch.tables):
            if self.runner.pipeline.in_flight:
                self.runner.settle()
            elif not self._preempt_newest():
                self.queues.put_back(batch.sessions)
                raise KVCacheExhausted(f"no KV blocks for one more token of {len(batch)} sessions: free or preempt one")
            batch = Batch.of([session for session in batch.sessions if session in self.running], self.ref)
        return batch

    def launch(self, batch: Batch) -> None:
        """Start a decode step; if that fails, its sessions are computed anew."""
        try:
            self.runner.launch(batch)
        except BaseException:
            self._recover(batch.sessions)
            raise
        self.stats.decode_steps += 1

    def commit(self) -> None:
        """Land all steps but those that the host may be behind: their tokens are read, and who has ended leaves."""
        pipeline = self.runner.pipeline
        while len(pipeline.in_flight) > pipeline.steps_ahead:
            if self.before_landing is not None:
                self.before_landing()
            self.land()

    def land(self) -> None:
        """Take the tokens of the oldest step, which is this scheduler's. `ModelRunner.settle` calls it, too.

        If that fails, whoever waits for a token is computed anew.
        """
        try:
            landed = self.runner.land()
        except BaseException:  # nobody knows how far it came
            self.runner.drop()
            self.queues.free_ended()
            for sample in list(filter(wants_token, self.queues.waiting_forks)):
                self.queues.free(sample)  # and it stays where it is, unless its last token has come
                if sample.finished:
                    self.waiting.discard(sample)
            self.queues.put_back(list(filter(wants_token, self.running)))
            raise
        self._hand_out(landed)

    def _recover(self, sessions: list[InferenceSession]) -> None:
        """These were to get one more token, and nobody knows how far it came: what was written is not used."""
        with suppress(BaseException):  # what fails there has put back all that was in flight
            self.runner.settle()
        self.queues.put_back([session for session in sessions if session in self.running or not session.finished])

    # -- admission ------------------------------------------------------------------------------------------------

    def _admit(self) -> list[InferenceSession]:
        """Sessions that have got their blocks and are to be prefilled; forks, which have theirs, start to run."""
        if not self.running:
            self.runner.settle()  # blocks may be on their way back, of another scheduler's sessions too
        places = self.max_batch_size - len(self.running)
        if places <= 0:
            return []
        needed = sum(map(self._blocks_to_come, self.running))
        admitted: list[InferenceSession] = []
        try:
            while self.waiting and places > 0 and len(admitted) < self.prefill_max_batch_size:
                session = self._next()
                is_fork = session.table is not None
                if not is_fork and not self._reserve(session, needed, alone=not (self.running or admitted)):
                    break
                self.waiting.discard(session)
                self.queues.waiting_forks.discard(session)
                session.times.admitted = session.times.admitted or time.perf_counter()
                (self.running if is_fork else admitted).append(session)
                places -= 1 + len(session.to_fork)  # samples that find no place wait
                needed += self._blocks_to_come(session)
        except BaseException:
            self.queues.put_back(admitted)
            raise
        return admitted

    def _next(self) -> InferenceSession:
        """The waiting session that the admission policy names."""
        number = self.admission(self.waiting)
        if not is_count(number, 0) or number >= len(self.waiting):
            raise ConfigError(
                f"the admission policy returned {number!r}: it must return 0 to {len(self.waiting) - 1}, the number of "
                "a waiting session"
            )
        return self.waiting[number]

    def _reserve(self, session: InferenceSession, needed: int, alone: bool) -> bool:
        """Reserve a session's blocks if those stay free that the others may need; else it would be preempted.

        So would its samples, each of which writes into a block of its own. alone: there are no others.
        """
        fits = False
        try:
            self._reserve_or_preempt(session, alone)
            fits = alone or self.runner.kv.num_available() >= needed + len(session.to_fork)
        except KVCacheExhausted:
            if alone:
                raise  # nothing here could give blocks back: sessions outside this scheduler hold them
        finally:
            if not fits:
                self.queues.free(session)
        return fits

    def _blocks_to_come(self, session: InferenceSession) -> int:
        """Blocks that a session and the samples that will be forked off it may need in their next step."""
        return self.runner.may_need_block(session) + len(session.to_fork)

    def _reserve_or_preempt(self, session: InferenceSession, alone: bool) -> None:
        """Reserve a session's blocks; where nothing runs, forks that wait give theirs for it."""
        while True:
            try:
                return self.runner.reserve(session)
            except KVCacheExhausted:
                if not alone or not self._preempt_newest():
                    raise

    def _preempt_newest(self) -> bool:
        """Take the blocks of the newest session, if there is another one."""
        preempted = self.queues.preempt_newest()
        self.stats.preemptions += preempted
        return preempted

    # -- prompts --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Admit what waits and fits, and compute its prompts."""
        if admitted := self._admit():
            self._prefill(admitted)

    def _prefill(self, sessions: list[InferenceSession]) -> None:
        """Compute prompts, and have the first token of each of their samples chosen."""
        start = time.perf_counter()
        self.running.update(dict.fromkeys(sessions))
        batch = list(sessions)
        try:
            logits = self.runner.prefill(sessions)
            rows = self._fork_samples(batch)
            if len(rows) > len(sessions):
                logits = logits[index_tensor(rows, logits.device)]
            landed = self.runner.begin(Batch.of(batch, self.ref), logits)
        except BaseException:
            self._recover(batch)
            raise
        self._hand_out(landed)
        self.queues.make_room()
        self.commit()
        self.stats.prefill_seconds += time.perf_counter() - start

    def _fork_samples(self, batch: list[InferenceSession]) -> list[int]:
        """Fork the samples of sessions that are prefilled off them, into the batch; returns the logits' row of each."""
        rows = list(range(len(batch)))
        for row in range(len(batch)):
            session = batch[row]
            for params in session.to_fork:
                fork = self.runner.fork(session, params)
                session.forks.append(fork)
                fork.owner = self.ref
                fork.times = SessionTimes(session.times.submitted, session.times.admitted)
                self.running.append(fork)
                batch.append(fork)
                rows.append(row)
        return rows

    def _hand_out(self, landed: Landed) -> None:
        """Note the tokens that sessions have taken; one that could have none ends, with an error."""
        now = time.perf_counter()
        self._new_tokens += landed.new_tokens
        for session, _ in landed.new_tokens:
            session.times.tokens.append(now)
            if session.finish_reason is not None:
                self.queues.end(session)
        for session in landed.without:
            session.finish_reason = "error"
            self.failed.append(session)
            self.queues.end(session)
        if self.queues.ended:
            self.queues.free_ended()


def runnable(sessions: Iterable[InferenceSession]) -> list[InferenceSession]:
    """Those that need one more decode step: not a session whose last token the step in flight is already making.

    A session of 3 prompt tokens and 2 new ones may have 5. After its prefill it has 4, and 3 are cached. A launch makes
    that 4: the step in flight makes the fifth, and no other step is needed. So a length stop is planned, and no
    position runs past the context. An end of text is found when the step has landed.
    """
    return [s for s in sessions if s.finish_reason is None and s.num_cached_tokens + 1 < s.most_tokens]


def wants_token(session: InferenceSession) -> bool:
    """Whether a session that holds blocks waits for a token that a step in flight is making, or has ended."""
    return session.finished or session.num_cached_tokens >= len(session.token_ids)
