"""Schedulers: which sessions are computed in the next step.

Continuous batching (a session joins when there is a place and leaves when it is done) is Orca's idea (OSDI 2022).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import is_count
from .errors import ConfigError, KVCacheExhausted, RequestError
from .session import InferenceSession

if TYPE_CHECKING:
    import torch

    from .engine import InferenceEngine

NewToken = tuple[InferenceSession, int]


def fifo(waiting: Sequence[InferenceSession]) -> int:
    """Admission in the order of arrival: the number of the next session to admit."""
    return 0


ADMISSION_POLICIES: dict[str, Callable[[Sequence[InferenceSession]], int]] = {"fifo": fifo}


@dataclass
class SchedulerStats:
    """Where a scheduler's time went."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    preemptions: int = 0


class OnlineScheduler:
    """Continuous batching: each step admits what fits, prefills it, and decodes everything that was running.

    When no block is free the newest session is preempted: its blocks go, it waits at the front (a fork that was waiting
    stays where it is), and its K and V are computed again later. Not for several threads: `SchedulerManager` is.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        max_batch_size: int | None = None,
        prefill_max_batch_size: int | None = None,
        admission: Callable[[Sequence[InferenceSession]], int] = fifo,
    ) -> None:
        """max_batch_size: sessions decoded together; prefill_max_batch_size: prompts computed together.

        None is the engine's `max_batch_size`.
        """
        most = engine.config.max_batch_size
        self.max_batch_size = most if max_batch_size is None else max_batch_size
        self.prefill_max_batch_size = self.max_batch_size if prefill_max_batch_size is None else prefill_max_batch_size
        if not is_count(self.max_batch_size) or self.max_batch_size > most:
            raise ConfigError(f"max_batch_size is {max_batch_size!r}: give 1 to {most}, the engine's own")
        if not is_count(self.prefill_max_batch_size):
            raise ConfigError(f"prefill_max_batch_size is {prefill_max_batch_size!r}: give 1 or more")
        self.engine = engine
        self.admission = admission
        self.waiting: deque[InferenceSession] = deque()
        self.running: list[InferenceSession] = []
        self.stats = SchedulerStats()

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, session: InferenceSession) -> None:
        """Queue a session of `engine.new_session`, or a fork, which needs no prefill and goes on where it is."""
        if session.finished or session in self.waiting or session in self.running:
            raise RequestError("the session is queued, running or finished already: make a new one, or fork it")
        if not session.times.submitted:
            session.times.submitted = time.perf_counter()
        self.waiting.append(session)

    def cancel(self, session: InferenceSession) -> None:
        """Stop a session, waiting or running; its blocks come back at once. No effect on one that has finished."""
        if session.finished:
            return
        session.finish_reason = "cancelled"
        for queue in (self.waiting, self.running):
            if session in queue:
                queue.remove(session)
        if session.block_ids_per_layer is not None:
            self.engine.free(session)

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.has_work:
            self.step()

    def step(self) -> list[NewToken]:
        """One prefill, if something waits and fits, and one decode step. Returns the new tokens in order."""
        decoding = list(self.running)
        new_tokens = self._prefill(self._admit())
        return new_tokens + self._decode(decoding)

    # -- prefill --------------------------------------------------------------------------------------------------

    def _admit(self) -> list[InferenceSession]:
        """Sessions that have got their blocks and are to be prefilled; forks, which have theirs, start to run."""
        places = min(self.max_batch_size - len(self.running), self.prefill_max_batch_size)
        admitted: list[InferenceSession] = []
        while self.waiting and len(admitted) < places:
            session = self.waiting[self.admission(self.waiting)]
            is_fork = session.block_ids_per_layer is not None
            if not is_fork and not self._reserve(session, others=len(self.running) + len(admitted)):
                break
            self.waiting.remove(session)
            session.times.admitted = session.times.admitted or time.perf_counter()
            (self.running if is_fork else admitted).append(session)
            places -= is_fork
        return admitted

    def _reserve(self, session: InferenceSession, others: int) -> bool:
        """Reserve a session's blocks if one stays free for each of the others; else it would soon be preempted."""
        try:
            self.engine.reserve(session)
        except KVCacheExhausted:
            if others > 0:
                return False
            if not self._preempt_newest():
                raise  # nothing here could give blocks back: sessions outside this scheduler hold them
            return self._reserve(session, others)
        if self.engine.kv.num_available() < others:
            self.engine.free(session)
            return False
        return True

    def _prefill(self, sessions: list[InferenceSession]) -> list[NewToken]:
        if not sessions:
            return []
        start = time.perf_counter()
        try:
            logits = self.engine.prefill(sessions)
        except BaseException:  # as if they had not been admitted
            for session in reversed(sessions):
                self.engine.free(session)
                self.waiting.appendleft(session)
            raise
        self.running += sessions
        new_tokens = self._take(sessions, logits)
        self.stats.prefill_seconds += time.perf_counter() - start
        return new_tokens

    # -- decode ---------------------------------------------------------------------------------------------------

    def _decode(self, sessions: list[InferenceSession]) -> list[NewToken]:
        if not sessions:
            return []
        start = time.perf_counter()
        while not self.engine.can_append(sessions) and self._preempt_newest():
            sessions = [session for session in sessions if session in self.running]
        if not sessions:
            return []
        new_tokens = self._take(sessions, self.engine.decode_step_sessions(sessions))
        self.stats.decode_seconds += time.perf_counter() - start
        self.stats.decode_steps += 1
        return new_tokens

    def _preempt_newest(self) -> bool:
        """Take the blocks of the newest session: a fork that waits, else one that runs; False if but one runs."""
        forks = [session for session in self.waiting if session.block_ids_per_layer is not None]
        if not forks and len(self.running) <= 1:
            return False
        newest = forks[-1] if forks else self.running.pop()
        self.engine.free(newest)
        if not forks:
            self.waiting.appendleft(newest)
        self.stats.preemptions += 1
        return True

    def _take(self, sessions: list[InferenceSession], logits: torch.Tensor) -> list[NewToken]:
        token_ids = self.engine.take_tokens(sessions, logits)
        now = time.perf_counter()
        for session in sessions:
            session.times.tokens.append(now)
            if session.finished:
                self.running.remove(session)
                self.engine.free(session)
        return list(zip(sessions, token_ids, strict=True))


class OfflineScheduler(OnlineScheduler):
    """Static batching, for comparison: a batch is filled, decoded until its last session is done, then the next."""

    def step(self) -> list[NewToken]:
        if self.running:
            return self._decode(list(self.running))
        new_tokens: list[NewToken] = []
        while admitted := self._admit():
            new_tokens += self._prefill(admitted)
        return new_tokens
