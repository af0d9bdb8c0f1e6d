"""A learner interrupts a long cell in a real kernel: the bar goes, and everything works as before."""

import pytest
from jupyter_client.manager import start_new_kernel

PREPARE = """
import gc, time
from rosecourse.measure import progress
from rosecourse.decode.garbage import collector_at_rest
from rosecourse.measure.stats import interleave_all
progress.DELAY = 0.1
"""
LONG = """
with collector_at_rest():
    interleave_all([lambda: time.sleep(0.05)], rounds=1000)
"""
AFTERWARDS = """
found = interleave_all([lambda: 7], rounds=2)
print(gc.isenabled(), found)
"""


@pytest.fixture
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def messages(kernel, code, interrupt_at=None):
    """Run a cell as a notebook does before which somebody sits; what it sends: pairs of type and content."""
    manager, client = kernel
    client.execute(code, allow_stdin=True)
    seen = []
    while not seen or seen[-1] != ("status", {"execution_state": "idle"}):
        message = client.get_iopub_msg(timeout=60)
        seen.append((message["msg_type"], message["content"]))
        if seen[-1][0] == interrupt_at:
            manager.interrupt_kernel()
            interrupt_at = None
    return seen


def test_an_interrupted_cell_leaves_a_kernel_that_can_be_used(kernel):
    messages(kernel, PREPARE)
    seen = messages(kernel, LONG, interrupt_at="stream")
    kinds = [kind for kind, _ in seen]
    assert "runs:" in next(content["text"] for kind, content in seen if kind == "stream")
    assert kinds.index("clear_output") > max(n for n, kind in enumerate(kinds) if kind == "stream")
    assert next(content["ename"] for kind, content in seen if kind == "error") == "KeyboardInterrupt"
    texts = [content["text"] for kind, content in messages(kernel, AFTERWARDS) if kind == "stream"]
    assert texts[-1] == "True [[7, 7]]\n"
