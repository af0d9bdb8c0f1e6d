"""A hint for a cell in the middle of a notebook that is run after the kernel was restarted.

An extension of IPython. `make env` has it loaded by the kernels of its environment, before any cell runs: what a cell
imports cannot help one that is run without it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .say import say

HINT = (
    "Hint: if the kernel has been restarted, all that the cells above had made is gone. Run them again: in JupyterLab, "
    "Run > Run All Above Selected Cell."
)


def load_ipython_extension(shell: Any) -> None:
    """Have the hint shown under each `NameError`, as long as the cell with the imports has not run."""
    shell.set_custom_exc((NameError,), _shown_with_hint)


def _shown_with_hint(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> None:
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    if "rc" not in shell.user_ns:
        say(HINT)
