"""PyTorch's settings of the whole process, or of the thread, kept from what the engine computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

_matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # of oneDNN, by which a CPU multiplies


@dataclass
class _Setting:
    """A setting of all threads, put aside while one computes: then it is as before, or as somebody has set it since.

    put_aside: leaves what no call of a user's leaves, by which a change shows.
    """

    is_on: Callable[[], bool]
    read: Callable[[], Any]
    put_aside: Callable[[], None]
    restore: Callable[[Any], None]
    threads: int = 0
    before: Any = None
    left: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def needed(self) -> bool:
        return self.threads > 0 or self.is_on()

    def __enter__(self) -> None:
        with self.lock:
            if self.is_on():
                self.before = self.read()
                self.put_aside()
                self.left = self.read()
            self.threads += 1

    def __exit__(self, *exc_info: object) -> None:
        with self.lock:
            self.threads -= 1
            if not self.threads:
                left, self.left = self.left, None
                if self.read() == left:
                    self.restore(self.before)


def _rounds() -> bool:
    return _matmul.fp32_precision not in ("none", "ieee")


def _multiply_exactly() -> None:
    _matmul.fp32_precision = "none"
    if _rounds():  # as oneDNN's other operations do, for which `none` stands
        _matmul.fp32_precision = "ieee"


def _multiply(precision: str) -> None:
    _matmul.fp32_precision = "none"
    if _matmul.fp32_precision != precision:
        _matmul.fp32_precision = precision


_SETTINGS = {
    # cuBLAS refuses to work under it without an environment variable. What the engine computes is the same each time.
    "cuda": _Setting(
        torch.are_deterministic_algorithms_enabled,
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda: torch.use_deterministic_algorithms(False, warn_only=True),
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    ),
    # `torch.set_float32_matmul_precision`: a CPU rounds by it where a product is large, so that a token's numbers would
    # depend on its batch. On CUDA TF32 is the user's choice.
    "cpu": _Setting(_rounds, lambda: _matmul.fp32_precision, _multiply_exactly, _multiply),
}


def _is_plain(device: torch.device) -> bool:
    return device.type not in _SETTINGS or not (torch.is_autocast_enabled(device.type) or _SETTINGS[device.type].needed)


@contextmanager
def _aside(device: torch.device, gradients: AbstractContextManager[Any]) -> Iterator[None]:
    setting, autocast = _SETTINGS[device.type], torch.is_autocast_enabled(device.type)
    without_autocast = torch.autocast(device.type, enabled=False) if autocast else nullcontext()
    with gradients, without_autocast, setting if setting.needed else nullcontext():
        yield


def settings_aside(device: torch.device) -> AbstractContextManager[None]:
    """In here a device computes what it computes where nobody has changed a setting."""
    return nullcontext() if _is_plain(device) else _aside(device, nullcontext())


def computing(device: torch.device) -> AbstractContextManager[Any]:
    """The same, without gradients: for the forward and all around it. Each step enters it, so it is cheap."""
    return torch.inference_mode() if _is_plain(device) else _aside(device, torch.inference_mode())
