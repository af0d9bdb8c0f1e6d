"""An interrupt of a cell, told in a few lines: where the notebook's own code was, and what to do."""

from __future__ import annotations

from types import TracebackType
from typing import Any

STOPPED = "the cell was stopped, and what it was making is not there. Run it again when you need it."


def shown_in_short(shell: Any, trace: TracebackType) -> None:
    """Show an interrupt with the frames of cells alone.

    Those of the engine, dozens of lines, say no more than where it happened to be. shell: IPython's.
    """
    shell.showtraceback((KeyboardInterrupt, KeyboardInterrupt(STOPPED), _of_cells(trace, shell.user_ns)), tb_offset=0)


def _of_cells(trace: TracebackType | None, names: dict[str, Any]) -> TracebackType | None:
    """The same traceback with the frames alone whose globals are these; None if there are none."""
    found = []
    while trace is not None:
        if trace.tb_frame.f_globals is names:
            found.append(trace)
        trace = trace.tb_next
    kept = None
    for each in reversed(found):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
