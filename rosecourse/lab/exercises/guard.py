"""A learner's file runs in the process of the command: whatever it does to that process is told in one line."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ...errors import ConfigError

LEAVE = "_exit"  # of `os`: the end of a process without a word
END: Callable[[int], NoReturn] = getattr(os, LEAVE)
OUTPUTS = {"stdout": 1, "stderr": 2}


@contextmanager
def guarded(what: str, seconds: float, late: Callable[[str], object]) -> Iterator[None]:
    """A context for a learner's code, which cannot end the process, nor close its output, nor go on for ever.

    what: the code, as messages call it. late: called in another thread, with a message, after so many seconds.
    `os._exit` raises SystemExit. Raises `ConfigError` if an output has been closed; it is open again then.
    """
    with _outputs_kept(what), _time_limit(f"{what} is still at work after {seconds:g} seconds", seconds, late):
        setattr(os, LEAVE, _stay)
        try:
            yield
        finally:
            setattr(os, LEAVE, END)


def _stay(code: int) -> NoReturn:
    raise SystemExit(f"os._exit({code})")


def end_with(line: str) -> NoReturn:
    """End the process with a line on standard error, whatever its main thread is doing."""
    os.write(OUTPUTS["stderr"], f"{line}\n".encode())
    END(2)


@contextmanager
def _time_limit(message: str, seconds: float, late: Callable[[str], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, late, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _outputs_kept(what: str) -> Iterator[None]:
    kept = {name: (getattr(sys, name), os.dup(number)) for name, number in OUTPUTS.items()}
    closed: list[str] = []
    try:
        yield
    finally:
        closed += [name for name, (stream, copy) in kept.items() if _put_back(name, stream, copy)]
    if closed:
        raise ConfigError(f"{what} closes {' and '.join(closed)}, which a part leaves open")


def _put_back(name: str, stream: Any, copy: int) -> bool:
    """Put an output and its file back; returns whether one of them had been closed."""
    number = OUTPUTS[name]
    try:
        is_kept = os.path.sameopenfile(number, copy)
    except OSError:
        is_kept = False
    if not is_kept:
        os.dup2(copy, number)
    os.close(copy)
    was_closed = stream.closed
    setattr(sys, name, open(number, "w", closefd=False) if was_closed else stream)  # noqa: SIM115 (open until the end)
    return was_closed or not is_kept
