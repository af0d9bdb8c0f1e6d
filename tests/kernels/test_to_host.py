"""Tokens get to memory of the host, and nothing beside them; the kernel goes through the interpreter on a CPU."""

import pytest
import torch
import triton

from rosecourse.kernels import can_start_early, to_host
from rosecourse.kernels.compile import INTERPRETED

DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []


def memory(size):
    return torch.full((size,), -9, dtype=torch.int64, pin_memory=DEVICE.type == "cuda")


@pytest.mark.parametrize("size", [1, to_host.TILE - 1, to_host.TILE, to_host.TILE + 1])
def test_the_kernel_writes_what_is_there_and_nothing_behind_it(size):
    tokens, host = torch.arange(size + 5, device=DEVICE), memory(size + 5)
    to_host._launch(DEVICE)((triton.cdiv(size, to_host.TILE), 1, 1), tokens, host, size)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert host.tolist() == [*range(size), *[-9] * 5]


@pytest.mark.parametrize("tokens", [torch.arange(6).int(), torch.arange(12).view(6, 2)[:, 0]], ids=["int32", "apart"])
def test_what_the_kernel_cannot_read_is_copied(tokens):
    host = memory(6)
    to_host.ToHost(DEVICE)(tokens.to(DEVICE), host)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert host.tolist() == tokens.tolist()


def test_neither_a_cpu_nor_the_interpreter_starts_kernels_early(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert not can_start_early(torch.device("cpu"))
    assert can_start_early(torch.device("cuda")) is not INTERPRETED
