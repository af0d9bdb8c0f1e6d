"""What a kernel says of its order with the kernels around it: `wait` and `start_next`.

On a GPU they are two instructions, `griddepcontrol.wait` and `griddepcontrol.launch_dependents`. Where kernels are
interpreted, one ends before the next begins, and there is nothing to wait for: whoever listens hears of them.
"""

from collections.abc import Callable

from ...kernels import INTERPRETED, TRITON_AVAILABLE

LISTENERS: list[Callable[[str], None]] = []  # each gets "wait" or "start"

if TRITON_AVAILABLE and not INTERPRETED:
    import triton
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    @triton.jit
    def wait() -> None:
        gdc_wait()

    @triton.jit
    def start_next() -> None:
        gdc_launch_dependents()
else:

    def wait() -> None:
        """Wait for the end of the kernel before this one; all that it has written can be seen then."""
        for hear in LISTENERS:
            hear("wait")

    def start_next() -> None:
        """The kernel after this one may start, once all programs have come here or have ended."""
        for hear in LISTENERS:
            hear("start")
