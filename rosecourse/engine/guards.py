"""The outer door of an engine: each public call, and each resumption of a stream, goes through it once.

Inside, code trusts: the loop of a scheduler, the runner and the cache look at nothing that was looked at here.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..errors import EngineBusy
from ..kernels.plain_torch import computing
from ..kv.bookkeeping import bookkeeping

IN_USE = (
    "another thread is using this engine: give each thread its own engine, or let all submit to one SchedulerManager"
)
MANAGED = "a SchedulerManager steps this engine: submit to the manager, or close it first"
IN_STEP = "a scheduler is in the middle of a step of this engine: let the step end first"


class Guard:
    """A context for one thread at a time, which may enter it again inside; another thread gets `EngineBusy`.

    What is done inside is `bookkeeping`, which an interrupt cannot split, and computes without gradients and as if
    nobody had changed a setting of PyTorch's. A thread may take the guard for itself, also for the time between two
    uses: then every other one is refused, and the thread itself never is.
    lock: for what is better done late than refused, such as giving back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self._turn = threading.RLock()  # so that who only gives back, under the lock, gets nobody refused
        self._taken_by: threading.Thread | None = None
        self._inside: list[AbstractContextManager[Any]] = []  # how the settings are put back, one for each entry

    def __enter__(self) -> None:
        bookkeeping.__enter__()
        try:
            me = threading.current_thread()
            entered = self._turn.acquire(blocking=self._taken_by is me)  # who is about to be refused leaves at once
            if not entered or self._taken_by not in (None, me):
                if entered:
                    self._turn.release()
                raise EngineBusy(IN_USE if self._taken_by is None else MANAGED)
            self.lock.acquire()
            settings = computing(self.device)
            settings.__enter__()
            self._inside.append(settings)
        except BaseException:
            bookkeeping.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._inside.pop().__exit__(None, None, None)
        self.lock.release()
        self._turn.release()
        bookkeeping.__exit__()

    def take(self, thread: threading.Thread) -> None:
        """Give it to a thread alone, until `hand_back`. Call it inside; raises `EngineBusy` in the middle of a step."""
        if len(self._inside) > 1:  # this very thread's
            raise EngineBusy(IN_STEP)
        self._taken_by = thread

    def hand_back(self) -> None:
        """Let every thread use it again."""
        self._taken_by = None
