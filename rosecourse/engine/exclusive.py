"""One thread at a time, without waiting: the second one is refused."""

from __future__ import annotations

import threading

from ..errors import EngineBusy
from ..kv.bookkeeping import bookkeeping

IN_USE = (
    "another thread is using this engine: give each thread its own engine, or let all submit to one SchedulerManager"
)
MANAGED = "a SchedulerManager steps this engine: submit to the manager, or close it first"


class Exclusive:
    """A context for one thread at a time, which may enter it again inside; another thread gets `EngineBusy`.

    A thread may take it for itself, also for the time between two uses: then every other one is refused, and the thread
    itself never is. What is done inside is `bookkeeping`, which an interrupt cannot split.
    lock: for what is better done late than refused, such as giving back.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._turn = threading.RLock()  # so that who only gives back, under the lock, gets nobody refused
        self._taken_by: threading.Thread | None = None

    def __enter__(self) -> None:
        bookkeeping.__enter__()
        try:
            self._acquire()
        except BaseException:
            bookkeeping.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.lock.release()
        self._turn.release()
        bookkeeping.__exit__()

    def _acquire(self) -> None:
        me = threading.current_thread()
        entered = self._turn.acquire(blocking=self._taken_by is me)  # who is about to be refused leaves at once
        if entered and self._taken_by in (None, me):
            self.lock.acquire()
            return
        if entered:
            self._turn.release()
        raise EngineBusy(IN_USE if self._taken_by is None else MANAGED)

    def take(self, thread: threading.Thread) -> None:
        """Give it to a thread alone, until `hand_back`. Raises `EngineBusy` if another one uses it or has it."""
        with self:
            self._taken_by = thread

    def hand_back(self) -> None:
        """Let every thread use it again."""
        self._taken_by = None
