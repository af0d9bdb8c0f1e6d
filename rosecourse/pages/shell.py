"""The notebook that the code runs in, if it runs in one."""

from __future__ import annotations

import sys
from typing import Any


def kernels_shell() -> Any:
    """IPython's shell in a Jupyter kernel; None on a terminal and in a program."""
    ipython = sys.modules.get("IPython")  # not a dependency: it is there if the kernel has brought it
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(getattr(shell, "kernel", None), "get_parent") else None


def is_watched(shell: Any) -> bool:
    """Whether somebody sits before the notebook: programs that execute one say that they cannot be asked anything."""
    return bool(shell.kernel.get_parent("shell").get("content", {}).get("allow_stdin"))
