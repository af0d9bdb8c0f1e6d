"""Tokens get to memory of the host, and nothing beside them."""

import pytest
import torch
import triton

from rosecourse.kernels import can_start_early, to_host
from tests.kernels.harness import DEVICE, INTERPRETED, MARKS

pytestmark = MARKS


def arrived(size, send):
    """What memory of the host holds once tokens were sent to it."""
    host = torch.full((size,), -9, dtype=torch.int64, pin_memory=not INTERPRETED)
    send(host)
    if not INTERPRETED:
        torch.cuda.synchronize()
    return host.tolist()


@pytest.mark.parametrize("size", [1, to_host.TILE - 1, to_host.TILE, to_host.TILE + 1])
def test_the_kernel_writes_what_is_there_and_nothing_behind_it(size):
    tokens, grid = torch.arange(size + 5, device=DEVICE), (triton.cdiv(size, to_host.TILE), 1, 1)
    found = arrived(size + 5, lambda host: to_host.ToHost(DEVICE).launch(grid, tokens, host, size))
    assert found == [*range(size), *[-9] * 5]


@pytest.mark.parametrize("tokens", [torch.arange(6).int(), torch.arange(12).view(6, 2)[:, 0]], ids=["int32", "apart"])
def test_what_the_kernel_cannot_read_is_copied(tokens):
    assert arrived(6, lambda host: to_host.ToHost(DEVICE)(tokens.to(DEVICE), host)) == tokens.tolist()


def test_neither_a_cpu_nor_the_interpreter_starts_kernels_early(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert not can_start_early(torch.device("cpu"))
    assert can_start_early(torch.device("cuda")) is (not INTERPRETED)
