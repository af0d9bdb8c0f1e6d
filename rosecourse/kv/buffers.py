"""From the host to the device without waiting: through pinned memory, in asynchronous copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def index_tensor(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """A Python list as an int64 tensor on a device.

    `torch.tensor(values, device="cuda")` copies from pageable memory, for which the host waits until all work before it
    is done. Pinned pages are PyTorch's own: it does not give them out again before the copy is through.
    """
    if device.type != "cuda":
        return torch.tensor(values, device=device)
    return torch.tensor(values, pin_memory=True).to(device, non_blocking=True)


class StagingBuffer:
    """A host tensor and its device twin, reused for every step, in whatever shape the step needs.

    On CUDA the host side is pinned, so that the copy does not wait. It must then not be rewritten while a copy from it
    may be in flight: `host` waits for the last copy. On a CPU the two are one tensor and nothing is copied.
    """

    def __init__(self, max_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._host = torch.zeros(max_elements, dtype=dtype, pin_memory=cuda)
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
