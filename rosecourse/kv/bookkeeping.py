"""Bookkeeping that an interrupt (Ctrl-C) cannot split.

Python runs a signal's handler between any two steps of the main thread's code, and Ctrl-C's raises there: a block that
has left the free list would be in no table yet. So whatever changes books does it inside `with bookkeeping:`. An
interrupt that comes then is remembered, and its handler is called where the outermost section ends. What takes long and
changes no books, such as a forward, is called through `bookkeeping.interruptible`.
"""

from __future__ import annotations

# What `signal` calls. Each of its functions makes an enumeration of what it returns, which takes microseconds.
import _signal  # type: ignore[import-not-found]
import signal
import time
from collections.abc import Callable
from threading import get_ident, main_thread
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAIN_THREAD = main_thread().ident
PATIENCE = 1.0  # seconds; a section that goes on for longer hangs, and the next interrupt gets through


class Bookkeeping:
    """A context, which may be entered again inside; there is one, `bookkeeping`.

    The outermost section puts a handler in the place of the one that was there for SIGINT, and puts that back. Only the
    main thread is ever interrupted: in others nothing happens, nor where SIGINT is ignored or has no handler of
    Python's.

    Wherever a single interrupt comes in the methods, the former handler is back or will be, and it is called once.
    """

    def __init__(self) -> None:
        self._open = 0  # sections
        self._window = 0  # how many were open when the innermost `interruptible` call began; 0: it is not in one
        self._came: float | None = None  # when an interrupt came that waits (`time.monotonic`)
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
            if self._came is not None:
                self._deliver()

    def interruptible(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that changes no books: an interrupt is raised in it at once, also one that has waited."""
        if not self._open or get_ident() != MAIN_THREAD:
            return function(*args, **kwargs)
        window = self._window
        try:
            self._window = self._open
            if self._came is not None:
                self._deliver()
            return function(*args, **kwargs)
        finally:
            self._window = window

    def _watch(self) -> None:
        former = _signal.getsignal(signal.SIGINT)
        if callable(former):
            if former != self._handle:
                self._former = former
            self._came, self._window = None, 0
            _signal.signal(signal.SIGINT, self._handle)

    def _unwatch(self) -> None:
        if _signal.getsignal(signal.SIGINT) == self._handle:  # else somebody has set another one meanwhile
            _signal.signal(signal.SIGINT, self._former)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._open != self._window:
            now = time.monotonic()
            if self._came is None:
                self._came = now
            if now - self._came < PATIENCE:
                return
        if not self._open:  # it came while a section was being opened or closed
            _signal.signal(signal.SIGINT, self._former)
        self._came, self._window = None, 0  # the end of a window is no place for a second one
        self._former(signum, frame)

    def _deliver(self) -> None:
        """Call the handler for an interrupt that has waited."""
        self._came = None
        self._former(signal.SIGINT, None)


bookkeeping = Bookkeeping()
