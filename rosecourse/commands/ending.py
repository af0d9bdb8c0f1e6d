"""How a command ends: an exit code, and at most one line on standard error."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import click

from ..checks import one_line
from ..errors import RosecourseError

REFUSED, INTERRUPTED, NO_READER = 2, 130, 141  # the exit codes; the latter two as a shell gives them for signals


def ended(name: str, work: Callable[[], int | None]) -> int:
    """Call `work`, and turn bad input, a full disk and a full memory into one line; returns the exit code.

    What was printed has been written then, or is dropped where nothing takes it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    line = ""
    try:
        code = work() or 0
        print(end="", flush=True)
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


def say(stream: TextIO, text: str) -> None:
    """Write all that a stream holds, and this; drop it where the stream takes nothing more, or has been closed."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # ValueError: it is closed
        drop(stream)


def drop(stream: TextIO) -> None:
    """Send the rest of a stream to nowhere: Python would try again when it ends, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def interrupts_leave() -> Iterator[None]:
    """Let an interrupt end the process, as during an import: libraries would raise other errors, or none."""
    handler = signal.getsignal(signal.SIGINT)
    usual = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, handler)
