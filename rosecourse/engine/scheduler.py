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
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any

from torch import Tensor

from ..checks import is_count, require_a, shown, told
from ..config import EngineConfig, SamplingParams
from ..decode import Batch
from ..errors import ConfigError, EngineBusy, KVCacheExhausted, RequestError, SchedulerClosed
from ..kv.buffers import index_tensor
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession, SessionTimes
from .model_runner import Landed
from .queues import NewToken, Sessions
from .rules import require_own, require_rule, require_siblings


@dataclass
class SchedulerStats:
    """Where a scheduler's time went."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    preemptions: int = 0


TABLE = attrgetter("table")


class OnlineScheduler(Sessions):
    """Continuous batching: each step admits what fits, prefills it, and decodes everything that was running. With a
    budget of tokens a step computes chunks of prompts beside the sessions that decode (lesson 074).

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
    ) -> None:
        """engine: an `InferenceEngine`. prefill_max_batch_size: prompts computed together. None is the engine's
        `max_batch_size`.
        """
        require_a(EngineConfig, getattr(engine, "config", None), "the config of the engine")
        most = engine.config.max_batch_size
        self.max_batch_size = most if max_batch_size is None else max_batch_size
        self.prefill_max_batch_size = self.max_batch_size if prefill_max_batch_size is None else prefill_max_batch_size
        if not is_count(self.max_batch_size) or self.max_batch_size > most:
            raise ConfigError(f"max_batch_size is {shown(max_batch_size)}: give 1 to {most}, the engine's own")
        if not is_count(self.prefill_max_batch_size):
            raise ConfigError(f"prefill_max_batch_size is {shown(prefill_max_batch_size)}: give 1 or more")
        super().__init__(engine.runner)
        self.engine = engine
        self.budget: int | None = engine.config.max_num_batched_tokens  # of tokens a step
        self.ref = weakref.ref(self)  # by which its sessions know it
        self.manager_thread: threading.Thread | None = None  # of the SchedulerManager that steps it
        self.stats = SchedulerStats()
        self.before_landing: Callable[[], None] | None = None  # called when the host is about to wait for the device

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
        """One prefill, if something waits and fits, and one decode step; with a budget of tokens, one step over both.

        Returns the new tokens in order.

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
                if self.budget is None or not self._mix(self.budget):
                    self._advance()
                new_tokens, self._new_tokens = self._new_tokens, []
                return new_tokens
        except BaseException:
            self._new_tokens = new_tokens or self._new_tokens  # an interrupt that waited: nobody has got them
            raise

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
            self._put_back([s for s in self.running if s.awaits_token or s.awaits_prefill])
            raise
        self._hand_out(landed)

    def _recover(self, sessions: list[InferenceSession]) -> None:
        """These were to get one more token, and nobody knows how far it came: what was written is not used."""
        with suppress(BaseException):  # what fails there has put back all that was in flight
            self.runner.settle()
        self._put_back([session for session in sessions if session in self.running or not session.finished])

    def _admit(self, budget: float = inf) -> list[InferenceSession]:
        """Sessions start to run: forks, which have their blocks, and those to prefill, which are returned with theirs.

        budget: prompts are admitted until they have so many tokens to compute.
        """
        if not self.running:
            self.runner.settle()  # blocks may be on their way back, of another scheduler's sessions too
        places = self.max_batch_size - len(self.running)
        if places <= 0:
            return []
        needed = sum(map(self._blocks_to_come, self.running))
        admitted: list[InferenceSession] = []
        try:
            while self.waiting and places > 0 and len(admitted) < self.prefill_max_batch_size:
                session = self.waiting[0]
                if session.table is None:
                    if budget <= 0 or not self._reserve(session, needed, alone=not self.running):
                        break
                    admitted.append(session)
                    budget -= session.num_missing_tokens
                self.waiting.discard(session)
                self.running.append(session)
                session.times.admitted = session.times.admitted or time.perf_counter()
                places -= 1 + len(session.to_fork)  # samples that find no place wait
                needed += self._blocks_to_come(session)
        except BaseException:
            self._put_back(admitted)
            raise
        return admitted

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

    def _begin(self) -> bool:
        """Admit what waits and fits, and compute its prompts whole; with a budget of tokens, `_mix` does. Returns
        whether there were any."""
        admitted = [] if self.budget is not None else self._admit()
        if admitted:
            self._compute(list(admitted), partial(self.runner.prefill, admitted))
        return bool(admitted)

    def _mix(self, budget: int) -> bool:
        """One step over what decodes and over chunks of prompts; False if there is no prompt to compute."""
        prompts = [session for session in self.running if session.awaits_prefill]
        if not prompts and not self.waiting:
            return False
        decoding = [session for session in self.running if not session.awaits_prefill]
        self._admit(budget - len(decoding) - sum(session.num_missing_tokens for session in prompts))
        batch = self.schedule(decoding)  # which may preempt some
        prompts = [session for session in self.running if session.awaits_prefill]
        if not prompts:
            return False
        sizes = self.runner.fill(len(batch), [session.num_missing_tokens for session in prompts])
        chunks = {session: size for session, size in zip(prompts, sizes, strict=True) if size}
        self._compute([*batch.sessions, *chunks], partial(self.runner.mix, batch, chunks))
        return True

    def _compute(self, sessions: list[InferenceSession], work: Callable[[], Tensor]) -> None:
        """Compute sessions, by work that returns a row of logits for each, and have the next token of those chosen that
        are whole then, and of their samples."""
        start = time.perf_counter()
        try:
            logits = work()
            row_of = self._fork_samples(sessions)
            landed = self._begin_tokens(row_of, logits) if row_of else Landed([], [])
        except BaseException:
            self._recover(sessions)
            raise
        self._hand_out(landed)
        while len(self.running) > self.max_batch_size:  # the newest wait at the front, with their blocks
            session = self.running[-1]
            self.running.discard(session)
            self.waiting.append_first(session)
        if row_of:
            self.commit()
        else:  # there is nothing to be one step behind of
            self.runner.settle()
        self.stats.prefill_seconds += time.perf_counter() - start

    def _begin_tokens(self, row_of: dict[InferenceSession, int], logits: Tensor) -> Landed:
        """Have the next token of each session chosen, by its row of the logits."""
        rows = list(row_of.values())
        if rows != list(range(len(logits))):
            logits = logits[index_tensor(rows, logits.device)]
        return self.runner.begin(Batch.of(list(row_of), self.ref), logits)

    def _fork_samples(self, sessions: list[InferenceSession]) -> dict[InferenceSession, int]:
        """Fork the samples of sessions that are computed off them, into the list. Returns who gets a token, and by
        which row of the logits."""
        row_of = {session: row for row, session in enumerate(sessions) if not session.awaits_prefill}
        for session, row in list(row_of.items()):
            for params in session.to_fork:
                fork = self.runner.fork(session, params)
                session.forks.append(fork)
                fork.owner = self.ref
                fork.times = SessionTimes(session.times.submitted, session.times.admitted)
                self.running.append(fork)
                sessions.append(fork)
                row_of[fork] = row
        return row_of


def runnable(sessions: Iterable[InferenceSession]) -> list[InferenceSession]:
    """Those that need one more decode step: not a session whose last token the step in flight is already making.

    A session of 3 prompt tokens and 2 new ones may have 5. After its prefill it has 4, and 3 are cached. A launch makes
    that 4: the step in flight makes the fifth, and no other step is needed. So a length stop is planned, and no
    position runs past the context. An end of text is found when the step has landed.
    """
    return [s for s in sessions if s.finish_reason is None and s.num_cached_tokens + 1 < s.most_tokens]
