"""A hint for a cell in the middle of a notebook that is run after the kernel was restarted.

An extension of IPython, with `interrupted`. `make env` has it loaded by the kernels of its environment, before any cell
runs: what a cell imports cannot help one that is run without it.
"""

from __future__ import annotations

import builtins
from difflib import get_close_matches
from types import TracebackType
from typing import Any

from .interrupted import shown_in_short
from .say import say

HINT = (
    "Hint: if the kernel has been restarted, or cells above were left out, what they make is not there. Run them: in "
    "JupyterLab, Run > Run All Above Selected Cell."
)
ALIKE = 0.8  # of `difflib`: a name that is so much like one that is there is a slip of the pen


def load_ipython_extension(shell: Any) -> None:
    """Have the hint shown under each `NameError` that is no slip of the pen, and interrupts told in short."""
    shell.set_custom_exc((NameError, KeyboardInterrupt), _shown)


def _shown(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> None:
    if isinstance(error, KeyboardInterrupt):
        shown_in_short(shell, trace)
        return
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    name = getattr(error, "name", None) or ""
    if not get_close_matches(name, {*shell.user_ns, *vars(builtins)}, n=1, cutoff=ALIKE):
        say(HINT)
