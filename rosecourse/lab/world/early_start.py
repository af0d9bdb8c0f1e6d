"""What a kernel says of its order with the kernels around it: `wait` and `start_next`.

On a GPU they are two instructions, `griddepcontrol.wait` and `griddepcontrol.launch_dependents`. Where kernels are
interpreted, one ends before the next begins, and there is nothing to wait for: whoever listens hears of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...kernels import INTERPRETED, TRITON_AVAILABLE

Listener = Callable[[str], None]  # gets "wait" or "start"
LISTENERS: list[Listener] = []

if TRITON_AVAILABLE and not INTERPRETED:
    from .early_start_on_gpu import start_next, wait
else:

    def wait() -> None:
        """Wait for the end of the kernel before this one; all that it has written can be seen then."""
        _tell("wait")

    def start_next() -> None:
        """The kernel after this one may start, once all programs have come here or have ended."""
        _tell("start")


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Waits and starts of the kernels in here are told to a listener."""
    LISTENERS.append(listener)
    try:
        yield
    finally:
        LISTENERS.remove(listener)


def _tell(what: str) -> None:
    for listener in LISTENERS:
        listener(what)
