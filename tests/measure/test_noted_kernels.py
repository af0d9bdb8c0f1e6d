"""Kernels in their order: operations that compute or move, and launches as one each."""

from types import SimpleNamespace

import pytest
import torch

from rosecourse.kernels.launch import Launch
from rosecourse.measure.noted_kernels import noted_kernels


def test_views_are_no_kernels_and_what_is_made_of_others_counts_as_these():
    x, weight, bias = torch.ones(2, 3), torch.ones(4, 3), torch.zeros(4)
    with noted_kernels() as kernels:
        torch.nn.functional.linear(x.view(2, 3)[:1], weight, bias).add_(1).reshape(2, 2)
        torch.empty(3).zero_()
    x.add(x)  # outside
    assert kernels == ["addmm", "add_", "zero_"]


class Kernel:
    """Stands for a kernel in the interpreter, which does it with operations of torch."""

    __name__ = "_a_kernel"

    def __getitem__(self, grid):
        return self.run

    def run(self, x, by):
        x.add_(by)
        if by < 0:
            raise ZeroDivisionError


def test_a_launch_is_one_kernel_whatever_its_interpreter_does(monkeypatch):
    handed = []
    monkeypatch.setattr(Launch, "handed_to", lambda launched: handed.append(launched) or torch.no_grad())
    x = torch.zeros(2)
    with noted_kernels() as kernels:
        handed[0](SimpleNamespace(kernel=Kernel(), constants=(5,)), (1,), (x,))
        with pytest.raises(ZeroDivisionError):
            handed[0](SimpleNamespace(kernel=Kernel(), constants=(-1,)), (1,), (x,))
        x.mul_(2)
    assert kernels == ["_a_kernel", "_a_kernel", "mul_"]
    assert x.tolist() == [8, 8]
