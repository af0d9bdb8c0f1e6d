"""The outer door of an engine: each public call, and each resumption of a stream, goes through a `Guard` once.

Inside, code trusts: the loop of a scheduler, the runner and the cache look at nothing that was looked at here. A guard
lets one thread in at a time, puts PyTorch's settings aside, and opens a section of `bookkeeping`, which an interrupt
(Ctrl-C) cannot split.

Python runs a signal's handler between any two steps of the main thread's code, and Ctrl-C's raises there: a block that
has left the free list would be in no table yet. So whatever changes books does it inside `with bookkeeping:`. An
interrupt that comes then is remembered, and its handler is called where the outermost section ends. What takes long and
changes no books, such as a forward, is called through `bookkeeping.interruptible`.
"""

from __future__ import annotations

# What `signal` calls. Each of its functions makes an enumeration of what it returns, which takes microseconds.
import _signal  # type: ignore[import-not-found]
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import get_ident, main_thread
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import EngineBusy

P = ParamSpec("P")
T = TypeVar("T")

MAIN_THREAD = main_thread().ident
PATIENCE = 1.0  # seconds; a section that goes on for longer hangs, and the next interrupt gets through


# -- interrupts -----------------------------------------------------------------------------------------------------


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


# -- settings of PyTorch --------------------------------------------------------------------------------------------


_matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # of oneDNN, by which a CPU multiplies


@dataclass
class _Setting:
    """A setting of all threads, put aside while one computes: then it is as before, or as somebody has set it since.

    put_aside: leaves what no call of a user's leaves, by which a change shows.
    """

    is_on: Callable[[], bool]
    read: Callable[[], Any]
    put_aside: Callable[[], None]
    restore: Callable[[Any], None]
    threads: int = 0
    before: Any = None
    left: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> None:
        with self.lock:
            if self.is_on():
                self.before = self.read()
                self.put_aside()
                self.left = self.read()
            self.threads += 1

    def __exit__(self, *exc_info: object) -> None:
        with self.lock:
            self.threads -= 1
            if not self.threads:
                left, self.left = self.left, None
                if self.read() == left:
                    self.restore(self.before)


def _rounds() -> bool:
    return _matmul.fp32_precision not in ("none", "ieee")


def _multiply_exactly() -> None:
    _matmul.fp32_precision = "none"
    if _rounds():  # as oneDNN's other operations do, for which `none` stands
        _matmul.fp32_precision = "ieee"


def _multiply(precision: str) -> None:
    _matmul.fp32_precision = "none"
    if _matmul.fp32_precision != precision:
        _matmul.fp32_precision = precision


_SETTINGS = {
    # cuBLAS refuses to work under it without an environment variable. What the engine computes is the same each time.
    "cuda": _Setting(
        torch.are_deterministic_algorithms_enabled,
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda: torch.use_deterministic_algorithms(False, warn_only=True),
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    ),
    # `torch.set_float32_matmul_precision`: a CPU rounds by it where a product is large, so that a token's numbers would
    # depend on its batch. On CUDA TF32 is the user's choice.
    "cpu": _Setting(_rounds, lambda: _matmul.fp32_precision, _multiply_exactly, _multiply),
}


def settings_aside(device: torch.device, *around: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """In here a device computes what it computes where nobody has changed a setting.

    around: a context to be in as well, such as `torch.inference_mode()`. Each step enters it, so it is cheap.
    """
    setting, autocast = _SETTINGS.get(device.type), torch.is_autocast_enabled(device.type)
    if setting is None or not (autocast or setting.threads or setting.is_on()):
        return around[0] if around else nullcontext()
    return _aside(*around, torch.autocast(device.type, enabled=False) if autocast else nullcontext(), setting)


@contextmanager
def _aside(*contexts: AbstractContextManager[Any] | _Setting) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            if not isinstance(context, _Setting) or context.threads or context.is_on():
                stack.enter_context(context)
        yield


# -- one thread at a time -------------------------------------------------------------------------------------------

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
            settings = settings_aside(self.device, torch.inference_mode())
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
