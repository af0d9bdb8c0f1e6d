"""Calls in a step of a part: which functions run, which kernels are launched, which arrays are made of lists."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ...measure.counters import TRITON_LAUNCHES
from ..course.costs import Binary
from .operations_seen import Operations

ARRAY_MAKERS = (np.array, np.fromiter)


class Calls:
    """Sees the calls within a `with` block, and tells `operations` of launches.

    codes: of the Python functions that have run. kernels: (module, name) of those launched, a launch each. binaries:
    the same with their constants, for each of which Triton compiles. arrays: NumPy arrays made.
    """

    def __init__(self, operations: Operations) -> None:
        self.codes: set[CodeType] = set()
        self.kernels: list[tuple[str, str]] = []
        self.binaries: set[Binary] = set()
        self.arrays = 0
        self._operations = operations
        self._profiler: Any = None

    def __enter__(self) -> Calls:
        self._profiler = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._profiler)
        self._operations.launching = None

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            self.arrays += any(arg is maker for maker in ARRAY_MAKERS)
        elif self._operations.launching is not None:
            if event == "return" and frame is self._operations.launching:
                self._operations.launching = None
        elif event == "call":
            self.codes.add(frame.f_code)
            if frame.f_code.co_qualname in TRITON_LAUNCHES:
                self._note_launch(frame.f_locals)
                self._operations.launching = frame

    def _note_launch(self, given: dict[str, Any]) -> None:
        """given: the locals of Triton's launcher as it begins, in the interpreter or on a GPU."""
        launcher = given["self"]
        kernel = launcher.fn.__module__, launcher.fn.__name__
        values = dict(zip(launcher.arg_names, given.get("args_dev") or given.get("args", ()), strict=False))
        values |= given["kwargs"]
        if hasattr(launcher, "params"):  # of a compiled kernel
            constants = [parameter.name for parameter in launcher.params if parameter.is_constexpr]
        else:
            constants = launcher.constexprs
        self.kernels.append(kernel)
        self.binaries.add((*kernel, *(f"{name}={values.get(name)}" for name in constants)))
