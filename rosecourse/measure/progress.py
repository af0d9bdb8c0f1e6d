"""A bar for work that takes more than two seconds, where somebody watches: on a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from ..pages.shell import watched_shell

DELAY = 2.0  # seconds before a bar appears


class Bar(tqdm):
    """tqdm's bar without its thread: nothing is drawn but by `update`, so that it never moves while a clock runs."""

    monitor_interval = 0
    shown = False  # whether anything has been drawn

    def display(self, *args: Any, **kwargs: Any) -> Any:
        self.shown = True
        return super().display(*args, **kwargs)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar over `total` pieces of work, `what` in the plural; yields what is to be called after each of them.

    Nothing is shown where nobody watches, as when a program executes a notebook. In a notebook the cell's output is
    cleared when the bar has been shown: measure first in a cell, then print.
    """
    notebook = watched_shell()
    watched = notebook is not None or sys.stderr.isatty()
    stream = sys.stderr if notebook is None else sys.stdout  # a notebook shows stderr on red, as if something failed
    bar = Bar(total=total, desc=what, file=stream, disable=not watched, delay=DELAY, miniters=1, leave=False)
    try:
        yield bar.update
    finally:
        bar.close()
        if notebook is not None and bar.shown:
            notebook.display_pub.clear_output()
