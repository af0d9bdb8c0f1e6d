"""A bar for work that takes more than two seconds, where somebody watches: on a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

DELAY = 2.0  # seconds before a bar appears


class Bar(tqdm):
    """tqdm's bar without its thread: nothing is drawn but by `update`, so that it never moves while a clock runs."""

    monitor_interval = 0


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar over `total` pieces of work; yields what is to be called after each of them, while no clock runs.

    what: the name of the pieces, in the plural. In a notebook the cell's output is cleared when the bar has been shown,
    so that a saved notebook holds nothing of it: measure first in a cell, then print. Nothing is shown where nobody
    watches, as when a notebook is executed by a program.
    """
    notebook = _notebook()
    watched = notebook is not None or sys.stderr.isatty()
    shown = False
    bar = Bar(total=total, desc=what, disable=not watched, delay=DELAY, miniters=1, leave=False)

    def advance() -> None:
        nonlocal shown
        shown = bool(bar.update()) or shown

    try:
        yield advance
    finally:
        bar.close()
        if notebook is not None and shown:
            notebook.display_pub.clear_output()


def is_watched() -> bool:
    """Whether this is a notebook before which somebody sits, and not one that a program executes."""
    return _notebook() is not None


def _notebook() -> Any:
    """IPython's shell if this is a notebook before which somebody sits; else None.

    Programs that execute notebooks tell the kernel that it cannot ask anybody anything.
    """
    ipython = sys.modules.get("IPython")  # not a dependency: it is there if the kernel has brought it
    shell = ipython.get_ipython() if ipython else None
    kernel: Any = getattr(shell, "kernel", None)
    if not hasattr(kernel, "get_parent"):
        return None
    request = kernel.get_parent("shell")
    return shell if request.get("content", {}).get("allow_stdin") else None
