"""The outer door of an engine: each public call, and each resumption of a stream, goes through a `Guard` once.

A guard lets one thread in at a time, and opens a section of `bookkeeping`, which an interrupt (Ctrl-C) cannot split:
a block that has left the free list would be in no table yet. An interrupt waits for the end of the outermost section.
What takes long and changes no books, such as a forward, is called through `bookkeeping.interruptible`.
"""

from __future__ import annotations

# What `signal` calls. Each of its functions makes an enumeration of what it returns, which takes microseconds.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident, main_thread
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import EngineBusy

P = ParamSpec("P")
T = TypeVar("T")

MAIN_THREAD = main_thread().ident


class Bookkeeping:
    """A context, which may be entered again inside; there is one, `bookkeeping`.

    The outermost section replaces the handler of SIGINT, and puts it back; in the main thread alone, where the handler
    is Python's. Wherever a single interrupt comes in the methods, the former handler will be back, and is called once.
    """

    def __init__(self) -> None:
        self._open = 0  # sections
        self._window = 0  # how many were open when the innermost `interruptible` call began; 0: it is not in one
        self._came = False  # whether an interrupt waits
        self._former: Callable[[int, FrameType | None], Any] = signal.default_int_handler

    def __enter__(self) -> None:
        if get_ident() != MAIN_THREAD:
            return
        if not self._open:
            self._watch()
        self._open += 1

    def __exit__(self, *exc_info: object) -> None:
        if get_ident() != MAIN_THREAD:
            return
        self._open -= 1  # from here on an interrupt gets through, if this is the end of the outermost section
        if self._open == self._window:
            if not self._open:
                self._unwatch()
            if self._came:
                self._deliver()

    def interruptible(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that changes no books: an interrupt is raised in it at once, also one that has waited."""
        if not self._open or get_ident() != MAIN_THREAD:
            return function(*args, **kwargs)
        window = self._window
        try:
            self._window = self._open
            if self._came:
                self._deliver()
            return function(*args, **kwargs)
        finally:
            self._window = window

    def _watch(self) -> None:
        former = _signal.getsignal(signal.SIGINT)
        if callable(former):
            if former != self._handle:
                self._former = former
            self._came, self._window = False, 0
            _signal.signal(signal.SIGINT, self._handle)

    def _unwatch(self) -> None:
        if _signal.getsignal(signal.SIGINT) == self._handle:  # else somebody has set another one meanwhile
            _signal.signal(signal.SIGINT, self._former)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._open != self._window:
            self._came = True
            return
        if not self._open:  # it came while a section was being opened or closed
            _signal.signal(signal.SIGINT, self._former)
        self._came, self._window = False, 0  # the end of a window is no place for a second one
        self._former(signum, frame)

    def _deliver(self) -> None:
        """Call the handler for an interrupt that has waited."""
        self._came = False
        self._former(signal.SIGINT, None)


bookkeeping = Bookkeeping()


IN_USE = "another thread uses this engine: give each thread its own engine, or let all submit to one SchedulerManager"
MANAGED = "a SchedulerManager steps this engine: submit to the manager, or close it first"
IN_STEP = "a scheduler is in the middle of a step of this engine: let the step end first"


class Guard:
    """A context for one thread at a time, which may enter it again inside; another thread gets `EngineBusy`.

    Inside is `bookkeeping`, without gradients and autocast. A thread may `take` the guard also for the time between two
    uses. lock: for what is better done late than refused, such as giving back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self._turn = threading.RLock()  # so that who only gives back, under the lock, gets nobody refused
        self._taken_by: threading.Thread | None = None
        self._inside: list[ExitStack] = []  # of each entry, what it computes in

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
            self._inside.append(ExitStack())
            self._inside[-1].enter_context(torch.inference_mode())
            if torch.is_autocast_enabled(self.device.type):
                self._inside[-1].enter_context(torch.autocast(self.device.type, enabled=False))
        except BaseException:
            bookkeeping.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._inside.pop().close()
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
