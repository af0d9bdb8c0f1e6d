"""How a command ends: an exit code, and at most one line on standard error. It needs nothing that must be installed."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TextIO

from ..checks import one_line
from ..errors import RosecourseError

REFUSED, INTERRUPTED, NO_READER = 2, 130, 141  # the exit codes; the latter two as a shell gives them for signals
LEAVE = "_exit"  # of `os`: the end of a process without a word
END: Callable[[int], NoReturn] = getattr(os, LEAVE)


def ended(name: str, work: Callable[[], int | None]) -> int:
    """Call `work`, and turn bad input, a full disk and a full memory into one line and exit code 2.

    Returns the exit code: what `work` returns, None being 0; 2; 130 for an interruption; or 141 where the reader of the
    output has gone. What was printed has been written then, or is dropped where nothing takes it.
    """
    open_closed_streams()
    line = ""
    try:
        code = work() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # there is nobody to tell
        code = NO_READER
        drop(sys.stdout)
    except refusals() as error:
        code, line = REFUSED, f"{name}: error: {one_line(error)}\n"
    say(sys.stdout, "")  # what was said before the error comes first
    say(sys.stderr, line)
    return code


def refusals() -> tuple[type[BaseException], ...]:
    """The exceptions that end a command in one line; torch's for a full device only where torch has been imported."""
    torch = sys.modules.get("torch")
    device_memory = (torch.OutOfMemoryError,) if torch is not None else ()
    return (RosecourseError, OSError, MemoryError, *device_memory)


# -- standard streams -------------------------------------------------------------------------------------------------


def open_closed_streams() -> None:
    """Standard streams that the caller has closed come from nowhere, and go there.

    Else the next file that is opened would get their numbers, and what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open until the end)


def say(stream: TextIO, text: str) -> None:
    """Write all that a stream holds, and this; where it takes nothing more, the rest goes nowhere.

    Python would try again when it ends, and complain.
    """
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # ValueError: it is closed
        drop(stream)


def drop(stream: TextIO) -> None:
    """Send the rest of a stream to nowhere."""
    with suppress(OSError, ValueError):  # it is closed, or no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


# -- interrupts ---------------------------------------------------------------------------------------------------


@contextmanager
def interrupts_leave() -> Iterator[None]:
    """A context in which an interrupt ends the process at once.

    For imports: libraries that are interrupted in theirs raise other errors, or none.
    """
    handler = signal.getsignal(signal.SIGINT)
    usual = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if usual:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, handler)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """A handler of signals that ends the process without a word."""
    END(INTERRUPTED)


def leave_at_the_end() -> None:
    """An interrupt while Python ends, where it would be told as an error of whoever ends then, ends it at once."""
    if threading.current_thread() is threading.main_thread():
        atexit.register(signal.signal, signal.SIGINT, leave)
