"""The notebook that the code runs in, if it runs in one."""

from __future__ import annotations

import sys
from typing import Any


def kernels_shell() -> Any:
    """IPython's shell in a Jupyter kernel; None on a terminal and in a program."""
    ipython = sys.modules.get("IPython")  # not a dependency: it is there if the kernel has brought it
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(getattr(shell, "kernel", None), "get_parent") else None


def watched_shell() -> Any:
    """The same if somebody sits before the notebook; a program that executes one says that it cannot be asked."""
    shell = kernels_shell()
    request = shell.kernel.get_parent("shell") if shell else {}
    return shell if request.get("content", {}).get("allow_stdin") else None
