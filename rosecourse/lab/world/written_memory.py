"""Memory that a step has written: by its last kernel, and by any of them. An operation of PyTorch is a kernel, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ...measure.counters import DispatchMode
from .runner_log import moves_data


class Places:
    """Places in memory: whole tensors, and addresses of single numbers."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []  # first byte, and the one behind the last
        self._addresses: list[np.ndarray] = []

    def add(self, other: Places) -> None:
        self._spans += other._spans
        self._addresses += other._addresses

    def add_tensor(self, tensor: torch.Tensor) -> None:
        self._spans.append(span_of(tensor))

    def add_addresses(self, addresses: np.ndarray) -> None:
        self._addresses.append(addresses)

    def has(self, addresses: np.ndarray) -> np.ndarray:
        """Which of some addresses are among the places."""
        found = np.zeros(len(addresses), dtype=bool)
        for start, end in self._spans:
            found |= (addresses >= start) & (addresses < end)
        for some in self._addresses:
            found |= np.isin(addresses, some)
        return found


class Written(DispatchMode):
    """Notes what operations of PyTorch write within `with` blocks; launches tell of themselves.

    newest: what the last kernel has written. step: what the kernels of a step have written until now. in_launch:
    whether a launch is under way: what the interpreter does then for itself is no kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest, self.step = Places(), Places()
        self.in_launch = False

    def begin(self) -> None:
        """A step begins. What the last kernel of the one before has written is still the newest."""
        self.step = Places()

    def by_kernel(self, places: Places) -> None:
        """A kernel has written these places."""
        self.newest = places
        self.step.add(places)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if moves_data(func) and not self.in_launch:
            places = Places()
            for tensor in tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    places.add_tensor(tensor)
            self.by_kernel(places)
        return made


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The memory of a tensor's numbers: its first byte, and the one behind the last."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
