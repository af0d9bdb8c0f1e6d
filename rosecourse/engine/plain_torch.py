"""PyTorch's settings of the whole process, or of the thread, kept from what the engine computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


class _Strictness:
    """`torch.use_deterministic_algorithms` while an engine computes: off, for the threads that do, and then as before.

    It is one setting for all threads, and cuBLAS refuses to work under it without an environment variable. What the
    engine computes is the same each time without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._warn_only = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
            self._threads += 1
            torch.use_deterministic_algorithms(False)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                torch.use_deterministic_algorithms(True, warn_only=self._warn_only)

    @property
    def needed(self) -> bool:
        return self._threads > 0 or torch.are_deterministic_algorithms_enabled()


_strictness = _Strictness()


def settings_aside(device: torch.device) -> AbstractContextManager[None]:
    """In here there is no autocast, and PyTorch refuses no algorithm."""
    if torch.is_autocast_enabled(device.type) or _strictness.needed:
        return _aside(device)
    return nullcontext()


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False), _strictness if _strictness.needed else nullcontext():
        yield


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """For the forward and all around it: as if nobody had changed a setting, and without gradients."""
    with torch.inference_mode(), settings_aside(device):
        yield
