"""How a command ends: an exit code, and at most one line on standard error."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TextIO

import click

from ..checks import one_line
from ..errors import RosecourseError

REFUSED, INTERRUPTED, NO_READER = 2, 130, 141  # the exit codes; the latter two as a shell gives them for signals
LEAVE = "_exit"  # of `os`: the end of a process without a word
END: Callable[[int], NoReturn] = getattr(os, LEAVE)


def ended(name: str, work: Callable[[], int | None]) -> int:
    """Call `work`, and turn bad input, a full disk and a full memory into one line; returns the exit code.

    What was printed has been written then, or is dropped where nothing takes it.
    """
    open_streams()
    line = ""
    try:
        code = work() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = NO_READER
        drop(sys.stdout)
    except click.ClickException as error:
        code, line = REFUSED, f"{name}: error: {one_line(error.format_message())} (see --help)\n"
    except refusals() as error:
        code, line = REFUSED, f"{name}: error: {one_line(error)}\n"
    say(sys.stdout, "")  # what was said before the error comes first
    say(sys.stderr, line)
    return code


def refusals() -> tuple[type[BaseException], ...]:
    """The exceptions that end a command in one line; torch's for a full device only where torch has been imported."""
    torch = sys.modules.get("torch")
    return (RosecourseError, OSError, MemoryError, *([torch.OutOfMemoryError] if torch else []))


def open_streams() -> None:
    """Open the standard streams that the caller has closed: else the next file would get what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark


def say(stream: TextIO, text: str) -> None:
    """Write all that a stream holds, and this; drop it where the stream takes nothing more."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # ValueError: it is closed
        drop(stream)


def drop(stream: TextIO) -> None:
    """Send the rest of a stream to nowhere: Python would try again when it ends, and complain."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def interrupts_leave() -> Iterator[None]:
    """End the process at an interrupt during an import: libraries would raise other errors, or none."""
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
    """Let an interrupt while Python ends do so at once."""
    if threading.current_thread() is threading.main_thread():
        atexit.register(signal.signal, signal.SIGINT, leave)
