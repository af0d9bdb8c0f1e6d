"""From the host to the device without waiting: through pinned memory, in asynchronous copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..checks import shown
from ..errors import ConfigError


def index_tensor(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """A Python list of integers, or of lists of them, as an int64 tensor on a device.

    From pinned memory, so that the host does not wait; PyTorch does not give it out again before the copy is through.
    """
    if device.type != "cuda":
        return torch.tensor(values, device=device)
    return torch.tensor(values, device="cpu", pin_memory=True).to(device, non_blocking=True)


@contextmanager
def fitting(what: str, remedy: str = "a smaller batch") -> Iterator[None]:
    """Raise `ConfigError` where a tensor that is made in here does not fit into memory."""
    try:
        yield
    except (RuntimeError, TypeError) as error:  # torch's words for a size that no memory has
        raise ConfigError(f"{what} not fit into memory: give {remedy}") from error


def state_buffer(num_elements: int, device: torch.device) -> torch.Tensor:
    """int64 zeros [num_elements] that stay on a device. Raises `ConfigError` where they do not fit into memory."""
    with fitting(f"a buffer of {shown(num_elements)} numbers does"):
        return torch.zeros(num_elements, dtype=torch.int64, device=device)


class StagingBuffer:
    """A host tensor and its device twin, reused for every step, in whatever shape the step needs.

    On CUDA the host side is pinned, and `host` waits for the last copy; on a CPU the two are one tensor.
    """

    def __init__(self, max_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        cuda = device.type == "cuda"
        with fitting(f"a buffer of {shown(max_elements)} numbers does"):
            self._host = torch.zeros(max_elements, dtype=dtype, device="cpu", pin_memory=cuda)
            self._device = torch.zeros(max_elements, dtype=dtype, device=device) if cuda else self._host
        self._copied = torch.cuda.Event() if cuda else None
        self._shape: tuple[int, ...] = (0,)

    def host(self, *shape: int) -> torch.Tensor:
        """A host tensor of this shape to write to: the beginning of the buffer, so that the copy is one piece."""
        if self._copied is not None:
            self._copied.synchronize()
        self._shape = shape
        return self._host[: math.prod(shape)].view(shape)

    def to_device(self) -> torch.Tensor:
        """Start the copy of what `host` gave last; returns its twin on the device."""
        size = math.prod(self._shape)
        on_device = self._device[:size]
        if self._copied is not None:
            on_device.copy_(self._host[:size], non_blocking=True)
            self._copied.record()
        return on_device.view(self._shape)
