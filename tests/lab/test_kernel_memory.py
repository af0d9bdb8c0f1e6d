"""A kernel that leaves its tensors is stopped in the interpreter, before it reads or writes there."""

import pytest
import torch

from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab.checking.kernel_memory import OutsideMemoryError, guarded_kernels

if TRITON_AVAILABLE:
    import triton
    import triton.language as tl
    from triton.runtime import interpreter

    @triton.jit
    def copy_rows(to, rows, n, WIDTH: tl.constexpr):
        row, lanes = tl.program_id(0), tl.arange(0, WIDTH)
        tl.store(to + row * WIDTH + lanes, tl.load(rows + row * WIDTH + lanes, mask=lanes < n, other=0.0))


pytestmark = pytest.mark.skipif(
    not TRITON_AVAILABLE or isinstance(copy_rows, triton.JITFunction), reason="for Triton's interpreter"
)


def launch(rows, programs, n=4):
    to = torch.zeros(programs * 4)
    copy_rows[(programs,)](to, rows, n, WIDTH=4)
    return to


def caused(error):
    return error if isinstance(error, OutsideMemoryError) else error.__cause__


def test_a_kernel_inside_its_tensors_runs_as_ever():
    rows = torch.arange(12.0)
    with guarded_kernels():
        assert launch(rows, 3).equal(rows)
        assert launch(rows[:8], 2, n=2).tolist() == [0, 1, 0, 0, 4, 5, 0, 0]


@pytest.mark.parametrize(
    ("programs", "distance"), [(4, 1), (6, 1)], ids=["a program too many", "the first of several is told"]
)
def test_a_grid_that_is_too_large_is_told_with_program_and_place(programs, distance):
    with guarded_kernels(), pytest.raises(Exception, match="program") as caught:
        launch(torch.arange(12.0), programs)
    told = str(caused(caught.value))
    assert told.startswith(f"program (3, 0, 0) reads {distance} elements behind the memory of `rows` (a tensor [12]")


def test_what_is_masked_is_not_read():
    with guarded_kernels():
        launch(torch.arange(9.0)[:9], 2, n=4)
        with pytest.raises(Exception, match=r"program \(2, 0, 0\) reads 1 elements behind"):
            launch(torch.arange(9.0), 3, n=4)
        launch(torch.arange(9.0), 3, n=1)


def test_a_write_before_its_tensor_is_told():
    with guarded_kernels(), pytest.raises(Exception, match=r"writes .* elements .* the memory of `to`"):
        copy_rows[(1,)](torch.zeros(2), torch.arange(4.0), 4, WIDTH=4)


def test_afterwards_the_interpreter_is_as_it_was():
    before = {name: getattr(interpreter.InterpreterBuilder, name) for name in dir(interpreter.InterpreterBuilder)}
    with guarded_kernels():
        assert interpreter.InterpreterBuilder.create_masked_load is not before["create_masked_load"]
    assert {name: getattr(interpreter.InterpreterBuilder, name) for name in before} == before
