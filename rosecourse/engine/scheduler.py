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
from typing import Any

from ..checks import is_count, require, require_a, shown, told
from ..config import EngineConfig, SamplingParams
from ..decode import Batch
from ..errors import ConfigError, EngineBusy, KVCacheExhausted, RequestError, SchedulerClosed
from ..kv.buffers import index_tensor
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession, SessionTimes
from .model_runner import Landed
from .queues import Queue, fifo
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
    stays where it is), and is computed again later. Several samples of one prompt are forked off its session after the
    prefill; those that find no place wait at the front, with their blocks. Not for several threads.
    """

    def __init__(
        self,
        engine: Any,
        *,
        max_batch_size: int | None = None,
        prefill_max_batch_size: int | None = None,
        admission: Callable[[Queue], int] = fifo,
    ) -> None:
        """engine: an `InferenceEngine`. prefill_max_batch_size: prompts computed together. None is the engine's
        `max_batch_size`. admission: gives the number of the next to admit in the queue of those that wait.
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
        self.engine, self.runner, self.admission = engine, engine.runner, admission
        self.ref = weakref.ref(self)  # by which its sessions know it
        self.manager_thread: threading.Thread | None = None  # of the SchedulerManager that steps it
        self.waiting, self.running = Queue(), Queue()  # who waits holds no blocks, unless it is a fork
        self.ended = Queue()  # no longer running, but a step in flight still writes to their blocks
        self.failed: list[InferenceSession] = []  # ended by an error of their own; whoever has read it may empty it
        self.stats = SchedulerStats()
        self._new_tokens: list[NewToken] = []  # made, and not yet returned by a step
        self._failure: BaseException | None = None  # why blocks could not be given back
        self.before_landing: Callable[[], None] | None = None  # called when the host is about to wait for the device

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._new_tokens or self.ended)

    def submit(self, session: InferenceSession, siblings: Sequence[SamplingParams] = ()) -> None:
        """Queue a session of `engine.new_session`, or a fork, which needs no prefill and goes on where it is.

        siblings: what further samples of a new session's prompt are asked for; they become its `forks` with its first
        token. Raises `RequestError` as `engine.rules` says, and `EngineBusy` under a `SchedulerManager`.
        """
        with self.engine.guard:
            require_rule("submit", session, self.engine)
            require_siblings(session, siblings, self.engine)
            session.times.submitted = session.times.submitted or time.perf_counter()
            session.owner = self.ref
            session.siblings = tuple(siblings)
            self.waiting.append(session)

    def cancel(self, session: InferenceSession) -> None:
        """Stop a session, waiting or running; its blocks come back at once. No effect on one that has finished.

        Raises as `submit`.
        """
        require_own(session, self.engine)
        if self.manager_thread not in (None, threading.current_thread()):
            raise EngineBusy("a SchedulerManager steps this scheduler: cancel the stream, or close the manager first")
        if session.finished:
            if session in self.ended:
                self.engine.settle()
            return
        if session.owner not in (None, self.ref):
            raise RequestError("the session is another scheduler's: cancel it there")
        with bookkeeping, self.engine.guard.lock:
            session.owner = None  # nobody's, so that its blocks can be given back at any time
            session.finish_reason = "cancelled"
            self.waiting.discard(session)
            self.running.discard(session)
            try:
                if self.runner.is_in_flight(session):
                    self.runner.settle()
            finally:
                self._free(session)

    def audit(self) -> None:
        """Raise `BlockError` unless every block is free, cached, or held by a session that waits or runs here."""
        self.engine.audit([*self.waiting, *self.running, *self.ended])

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.has_work:
            bookkeeping.interruptible(self.step)

    def step(self) -> list[NewToken]:
        """One prefill, if something waits and fits, and one decode step. Returns the new tokens in order.

        A step that raises loses nothing: the sessions that it was computing wait at the front to be computed again, and
        the next step also returns its tokens. Only when blocks could not be given back all others raise too.
        """
        if (failure := self._failure) is not None:
            raise SchedulerClosed(
                f"KV blocks could not be given back ({told(failure)}): make a new engine and a new scheduler"
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
        """The tokens that no step has returned; none will."""
        new_tokens, self._new_tokens = self._new_tokens, []
        return new_tokens

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
        """The running sessions that need one more step; while the pool is dry steps land, then some are preempted."""
        sessions = runnable(running)
        batch = Batch(sessions, list(map(TABLE, sessions)), self.ref)
        while not self.runner.kv.can_append(batch.tables):
            if self.runner.pipeline.in_flight:
                self.runner.settle()
            elif not self._preempt_newest():
                self._put_back(batch.sessions)
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
        """Take the tokens of the oldest step, this scheduler's. If that fails, who waits for one is computed anew."""
        try:
            landed = self.runner.land()
        except BaseException:  # nobody knows how far it came
            self.runner.drop()
            self._free_ended()
            for sample in [s for s in self.waiting if s.table is not None and s.awaits_token]:
                self._free(sample)  # and it stays where it is, unless its last token has come
                if sample.finished:
                    self.waiting.discard(sample)
            self._put_back([s for s in self.running if s.awaits_token])
            raise
        self._hand_out(landed)

    def _recover(self, sessions: list[InferenceSession]) -> None:
        """These were to get one more token, and nobody knows how far it came: what was written is not used."""
        with suppress(BaseException):  # what fails there has put back all that was in flight
            self.runner.settle()
        self._put_back([session for session in sessions if session in self.running or not session.finished])

    def _admit(self) -> list[InferenceSession]:
        """The sessions to prefill, with their blocks; forks, which have theirs, start to run."""
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
                session.times.admitted = session.times.admitted or time.perf_counter()
                (self.running if is_fork else admitted).append(session)
                places -= 1 + len(session.to_fork)  # samples that find no place wait
                needed += self._blocks_to_come(session)
        except BaseException:
            self._put_back(admitted)
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
        """Reserve a session's blocks if those stay free that the others, and its samples, need; else it would be
        preempted. alone: there are no others, and forks that wait give their blocks for it. Raises `KVCacheExhausted`
        where sessions outside this scheduler hold them.
        """
        fits = False
        try:
            while True:
                try:
                    self.runner.reserve(session)
                    break
                except KVCacheExhausted:
                    if not alone:
                        return False
                    if not self._preempt_newest():
                        raise
            fits = alone or self.runner.kv.num_available() >= needed + len(session.to_fork)
        finally:
            if not fits:
                self._free(session)
        return fits

    def _blocks_to_come(self, session: InferenceSession) -> int:
        """Blocks that a session and its samples may need in their next step."""
        return self.runner.may_need_block(session) + len(session.to_fork)

    def _preempt_newest(self) -> bool:
        """Take the blocks of the newest session: a fork that waits, else one that runs; False if only one runs."""
        fork = next((session for session in reversed(self.waiting) if session.table is not None), None)
        if fork is not None:
            self._free(fork)  # and it stays where it is
        elif len(self.running) > 1:
            self._put_back([self.running[-1]])
        else:
            return False
        self.stats.preemptions += 1
        return True

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
        while len(self.running) > self.max_batch_size:  # the newest wait at the front, with their blocks
            session = self.running[-1]
            self.running.discard(session)
            self.waiting.append_first(session)
        self.commit()
        self.stats.prefill_seconds += time.perf_counter() - start

    def _fork_samples(self, batch: list[InferenceSession]) -> list[int]:
        """Fork the samples of prefilled sessions off them, into the batch; returns the logits' row of each."""
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
                self._end(session)
        for session in landed.without:
            session.finish_reason = "error"
            self.failed.append(session)
            self._end(session)
        if self.ended:
            self._free_ended()

    def _end(self, session: InferenceSession) -> None:
        """A session has finished. Its blocks come back when no step in flight can write to them."""
        self.running.discard(session)
        self.waiting.discard(session)  # a sample may wait when its token lands
        self.ended.append(session)

    def _free_ended(self) -> None:
        for session in list(self.ended):
            if not self.runner.is_in_flight(session):
                self.ended.discard(session)
                self._free(session)

    def _put_back(self, sessions: list[InferenceSession]) -> None:
        """As if they had not been admitted: they wait at the front, in the same order and without blocks."""
        for session in reversed(sessions):
            self._free(session)
            self.running.discard(session)
            if not session.finished:
                self.waiting.append_first(session)

    def _free(self, session: InferenceSession) -> None:
        """Give a session's blocks back, if it holds any."""
        if session.table is None:
            return
        try:
            self.runner.free(session)
        except BaseException as error:
            self._failure = error
            self.runner.drop()  # there is no next step to land what is in flight
            raise


def runnable(sessions: Iterable[InferenceSession]) -> list[InferenceSession]:
    """Those that need one more decode step: not a session whose last token the step in flight is already making.

    A session of 3 prompt tokens and 2 new ones may have 5. After its prefill it has 4, and 3 are cached. A launch makes
    that 4: the step in flight makes the fifth, and no other step is needed. So a length stop is planned, and no
    position runs past the context. An end of text is found when the step has landed.
    """
    return [s for s in sessions if s.finish_reason is None and s.num_cached_tokens + 1 < s.most_tokens]
