"""Staging buffers: host memory that is filled each step and copied to the device in one asynchronous go."""

from __future__ import annotations

import torch


class StagingBuffer:
    """A host tensor and its device twin, both of the same shape and reused for every step.

    On CUDA the host side is pinned, so that the copy does not wait. It must then not be rewritten while a copy from it
    may be in flight: `host()` waits for the last copy. On a CPU the two are one tensor and nothing is copied.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=cuda)
        self._device = torch.zeros(shape, dtype=dtype, device=device) if cuda else self._host
        self._copied = torch.cuda.Event() if cuda else None

    def host(self) -> torch.Tensor:
        """The host tensor, safe to write."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    def to_device(self, index: tuple[slice, ...]) -> torch.Tensor:
        """Start the copy of one region of the host tensor; returns the same region of the device tensor."""
        device_view = self._device[index]
        if self._copied is not None:
            device_view.copy_(self._host[index], non_blocking=True)
            self._copied.record()
        return device_view
