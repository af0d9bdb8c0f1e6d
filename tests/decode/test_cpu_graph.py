"""The recorder of a CPU: what a capture leaves alone, what a replay does, and what no graph can hold."""

import pytest
import torch
import triton
import triton.language as tl

from rosecourse.errors import CaptureError
from rosecourse.kernels.launch import Launch
from rosecourse.lab.checking.cpu_graph import CPUGraph


def captured(work):
    graph = CPUGraph()
    graph.capture(work)
    return graph


def test_a_capture_changes_nothing_and_a_replay_does_the_work():
    x, out = torch.arange(4.0), torch.zeros(4)

    def work():
        x.add_(1)
        out.copy_(x * 2)

    graph = captured(work)
    assert x.tolist() == [0, 1, 2, 3]
    assert out.tolist() == [0] * 4
    for n in (1, 2, 3):
        graph.replay()
        assert out.tolist() == [2 * (k + n) for k in range(4)]


def test_what_is_made_is_poisoned_until_the_first_replay():
    x, made = torch.ones(3), []
    graph = captured(lambda: made.extend([x + 1, (x > 0), x.long() + 1, x.view(3, 1)]))
    assert made[0].isnan().all()
    assert made[1].all()
    assert (made[2] == torch.iinfo(torch.int64).min).all()
    assert made[3].data_ptr() == x.data_ptr()  # a view is no work
    where = [tensor.data_ptr() for tensor in made]
    x.zero_()
    graph.replay()
    assert [tensor.data_ptr() for tensor in made] == where
    assert [tensor.flatten().tolist() for tensor in made] == [[1] * 3, [False] * 3, [1] * 3, [0] * 3]


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


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.numpy(), "numpy"),
        (lambda x: bool(x.any()), "bool"),
        (lambda x: int(x.sum()), "int"),
        (lambda x: float(x.sum()), "float"),
        (lambda x: [1, 2][x.sum().long()], "index"),
        (lambda x: 3.0 in x, "contains"),
    ],
)
def test_a_read_by_the_host_is_refused_by_its_name(read, name):
    x, graph = torch.zeros(2), CPUGraph()

    def work():
        x.add_(1)
        read(x)

    with pytest.raises(CaptureError, match=f"^`{name}` reads a tensor on the host") as caught:
        graph.capture(work)
    assert "\n" not in str(caught.value)
    assert x.tolist() == [0, 0]
    assert graph.operations == []
    x.add_(1)  # everything runs again
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x + 1),
        lambda x: torch.repeat_interleave(x, x.long()),
    ],
)
def test_a_shape_that_follows_the_data_is_refused(work):
    with pytest.raises(CaptureError, match="follows the data"):
        captured(lambda: work(torch.ones(3)))


def test_an_operation_of_unknown_shape_is_refused():
    table, weights = torch.ones(4, 2).to_sparse_csr(), torch.ones(4, 4)
    with pytest.raises(CaptureError, match="cannot be recorded"):
        captured(lambda: torch.sparse.sampled_addmm(table, weights[:, :2], weights[:2, :2], beta=0.0))


@triton.jit
def _add_one_kernel(ptr, N: tl.constexpr):
    at = ptr + tl.arange(0, N)
    tl.store(at, tl.load(at) + 1)


@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="kernels do not run on a CPU")
def test_launches_are_recorded_in_their_order():
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


def test_the_type_of_a_number_decides_what_is_made():
    x, made = torch.arange(3), []
    for number in (2, 2.0, 2):
        graph = CPUGraph()
        graph.capture(lambda number=number: made.append(x * number))
        graph.replay()
    assert [tensor.dtype for tensor in made] == [torch.int64, torch.float32, torch.int64]
    assert [tensor.tolist() for tensor in made] == [[0, 2, 4]] * 3
    assert len({tensor.data_ptr() for tensor in made}) == 3
