"""The recorder of a CPU: what a capture leaves alone, what a replay does, and what no graph can hold."""

import pytest
import torch
import triton
import triton.language as tl

from rosecourse.kernels.launch import Launch
from rosecourse.lab.checking.cpu_graph import CaptureError, CPUGraph


def captured(work):
    graph = CPUGraph()
    graph.capture(work)
    return graph


def test_what_is_made_is_poisoned_until_the_first_replay():
    x, made = torch.ones(3), []
    graph = captured(lambda: made.extend([x + 1, (x > 0), x.long() + 1, x.view(3, 1), x.long() + 1.0]))
    assert made[0].isnan().all()
    assert made[1].all()
    assert (made[2] == torch.iinfo(torch.int64).min).all()
    assert made[3].data_ptr() == x.data_ptr()  # a view is no work
    assert made[4].dtype == torch.float32  # the type of a number decides
    where = [tensor.data_ptr() for tensor in made]
    x.zero_()
    graph.replay()
    assert [tensor.data_ptr() for tensor in made] == where
    assert [tensor.flatten().tolist() for tensor in made] == [[1] * 3, [False] * 3, [1] * 3, [0] * 3, [1] * 3]


def test_what_a_capture_has_read_is_frozen():
    """A tensor that is replaced is lost, one that is written is seen; a number stays, a branch is taken once."""
    state, out, taken = {"x": torch.zeros(1), "n": 1}, torch.zeros(1), []

    def work():
        taken.append(state["n"])
        if state["n"] < 2:
            out.copy_(state["x"] + state["n"])

    graph = captured(work)
    state["x"].fill_(5)
    state["n"] = 2
    graph.replay()
    assert out.item() == 6
    state["x"] = torch.full((1,), 7.0)
    graph.replay()
    assert (out.item(), taken) == (6, [1])


CSR, WEIGHTS = torch.ones(4, 2).to_sparse_csr(), torch.ones(4, 4)
REFUSED = [  # what no graph can hold: a read by the host, a shape that follows the data, an operation of unknown shape
    (lambda x: x.sum().item(), "^`item` reads a tensor on the host"),
    (lambda x: x.tolist(), "^`tolist` reads"),
    (lambda x: x.numpy(), "^`numpy` reads"),
    (lambda x: bool(x.any()), "^`bool` reads"),
    (lambda x: int(x.sum()), "^`int` reads"),
    (lambda x: float(x.sum()), "^`float` reads"),
    (lambda x: [1, 2][x.sum().long()], "^`index` reads"),
    (lambda x: 3.0 in x, "^`contains` reads"),
    (lambda x: x[x > 0], "follows the data"),
    (lambda x: torch.equal(x, x + 1), "follows the data"),
    (lambda x: torch.repeat_interleave(x, x.long()), "follows the data"),
    (lambda x: torch.sparse.sampled_addmm(CSR, WEIGHTS[:, :2], WEIGHTS[:2, :2], beta=0.0), "cannot be recorded"),
]


@pytest.mark.parametrize(("work", "says"), REFUSED)
def test_what_no_graph_can_hold_is_refused_and_changes_nothing(work, says):
    x, graph = torch.zeros(2), CPUGraph()
    with pytest.raises(CaptureError, match=says):
        graph.capture(lambda: (x.add_(1), work(x)))
    assert x.tolist() == [0, 0]
    assert graph.operations == []
    x.add_(1)  # everything runs again
    assert x.tolist() == [1, 1]


@triton.jit
def _add_one_kernel(ptr, N: tl.constexpr):
    at = ptr + tl.arange(0, N)
    tl.store(at, tl.load(at) + 1)


@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="kernels do not run on a CPU")
def test_a_capture_changes_nothing_and_replays_run_in_order():
    x, launch = torch.zeros(4), Launch(_add_one_kernel, (4,))

    def work():
        x.mul_(2)
        launch((1, 1, 1), x)

    graph = captured(work)
    assert x.tolist() == [0] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [3] * 4
    launch((1, 1, 1), x)
    assert x.tolist() == [4] * 4
