"""A learner's file runs in the process of the command: one that does not end is told in one line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

STDERR, LEAVE = 2, "_exit"  # of `os`: the end of a process without a word
END: Callable[[int], NoReturn] = getattr(os, LEAVE)


@contextmanager
def guarded(what: str, seconds: float, late: Callable[[str], object]) -> Iterator[None]:
    """A context for a learner's code, which cannot go on for ever.

    what: the code, as messages call it. late: called in another thread, with a message, after so many seconds.
    """
    timer = threading.Timer(seconds, late, [f"{what} is still at work after {seconds:g} seconds"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_with(line: str) -> NoReturn:
    """End the process with a line on standard error, whatever its main thread is doing."""
    os.write(STDERR, f"{line}\n".encode())
    END(2)
