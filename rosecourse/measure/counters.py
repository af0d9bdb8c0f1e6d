"""Counters that are true on every machine: what a running engine does, seen from outside.

The interpreter's profiler sees Python calls, a dispatch mode sees torch operations, and a function mode sees for which
device a tensor is made. The engine is not changed. Only the thread that watches is seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..engine.engine import InferenceEngine
from ..kernels.launch import Launch
from ..kv.buffers import StagingBuffer
from ..request.session import InferenceSession
from .anatomy import finish, require_running

TRITON_LAUNCHES = ("GridExecutor.__call__", "JITFunction.run")  # in the interpreter, and on a GPU
OTHERS = sys.stdlib_module_names | {"torch"}  # whose Python calls say nothing of the engine
# The operations that a table shows: those that move K, V, tables and indices. The model's own are left out, because
# torch versions and devices split them in different ways.
OPERATIONS = ("index_select", "index_put", "index_copy", "index", "gather", "scatter", "stack", "cat", "copy")


class DispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` that no compiled code runs in: torch need not import its compiler, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@dataclass
class Counts:
    """What was seen while an engine ran.

    calls: Python calls by qualified name, such as `KVBlockManager.append_token`, without those of torch and of Python.
    operations: torch operations by name, in-place ones with their `_`; views too; `from_list` makes a tensor of a list.
        Those inside a launch or a replay do not count: without a GPU they are the work of Triton's interpreter.
    list_tensors, list_bytes: tensors made from Python lists, or of NumPy arrays moved to the device, and their bytes.
    device_bytes: of tensors made from lists with a `device=`, lists used as an index, and what `StagingBuffer` gives.
        On CUDA they are copied; on a CPU nothing moves, and these are what would be.
    numpy_views: tensors opened as NumPy arrays. launches: of Triton kernels, by the function that launches them.
    """

    calls: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    list_tensors: int = 0
    list_bytes: int = 0
    device_bytes: int = 0
    numpy_views: int = 0
    launches: Counter[str] = field(default_factory=Counter)
    replays: int = 0

    def calls_of(self, name: str) -> int:
        """Calls of functions and methods of this name, in whatever class."""
        return sum(n for qualified, n in self.calls.items() if qualified.rpartition(".")[2] == name)

    def operations_of(self, name: str) -> int:
        """Torch operations of this name, in place or not."""
        return self.operations[name] + self.operations[name + "_"]

    def rows(self) -> dict[str, int]:
        """The counts in plain words, in the order of the table, with a row for each kernel that was launched."""
        return {
            "append_token calls": self.calls_of("append_token"),
            "append_token_batch calls": self.calls_of("append_token_batch"),
            "tensors built from Python lists": self.list_tensors,
            "bytes of these": self.list_bytes,
            "bytes handed to the device": self.device_bytes,
            "tensors opened as NumPy arrays": self.numpy_views,
            **{name: self.operations_of(name) for name in OPERATIONS},
            "select (a view)": self.operations_of("select"),
            "replays of a graph": self.replays,
            **{f"{name} launches": self.launches[name] for name in sorted(self.launches)},
        }


class _Operations(DispatchMode):
    """Sees operations, and the tensors that come from lists."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.watch.launch is None:
            self.watch.count_operation(func.overloadpacket.__name__, result)
        return result


class _Places(TorchFunctionMode):
    """Sees NumPy's views, and for which device a tensor is made, which on a CPU is lost when it is dispatched."""

    MAKERS = (torch.tensor, torch.as_tensor)
    MOVERS = (torch.Tensor.to, torch.Tensor.cuda)

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self.watch.counts.numpy_views += func is torch.Tensor.numpy
        if func in self.MOVERS and not isinstance((*args[1:], *kwargs.values(), None)[0], torch.dtype):
            self.watch.count_move(args[0])
        if func not in self.MAKERS or kwargs.get("device") not in (None, "cpu"):  # a word: for the host, on any machine
            return func(*args, **kwargs)
        with patch.object(self.watch, "on_host", True):
            result = func(*args, **kwargs)
        self.watch.made_on_host.append(result)
        return result


class Watch:
    """Counts what this thread does inside a `with` block; a further `with` adds to it."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.on_host = False  # whether a tensor that is being made stays on the host
        self.launch: FrameType | None = None  # the one in progress, or a replay
        self._of_array = 0  # calls in progress that make a tensor that is another look at a NumPy array
        self._arrays: list[torch.Tensor] = []  # which count where they are moved
        self.made_on_host: list[torch.Tensor] = []
        self._modes = ExitStack()
        self._profiler: Any = None

    def __enter__(self) -> Counts:
        self._modes.enter_context(_Places(self))
        self._modes.enter_context(_Operations(self))
        self._profiler = sys.getprofile()  # another watch around this one, for instance: it keeps seeing
        sys.setprofile(self._profile)
        return self.counts

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._profiler)
        self._modes.close()
        self.launch, self._of_array, self._arrays, self.made_on_host = None, 0, [], []

    def count_operation(self, name: str, result: Any) -> None:
        """An operation, and a tensor that it has made of a list."""
        if self._of_array > 0:
            self._arrays.append(result)
            return
        from_list = name in ("lift_fresh", "lift_fresh_copy")
        self.counts.operations["from_list" if from_list else name] += 1
        if from_list and result.dim() > 0:  # a tensor of no dimensions was a number, not a list
            self._count_list(result)
            self.counts.device_bytes += 0 if self.on_host else result.nbytes

    def count_move(self, tensor: torch.Tensor) -> None:
        """A tensor goes to the device."""
        of_array = any(tensor is array for array in self._arrays)
        if of_array:
            self._count_list(tensor)
        if of_array or any(tensor is made for made in self.made_on_host):
            self.counts.device_bytes += tensor.nbytes

    def _count_list(self, tensor: torch.Tensor) -> None:
        self.counts.list_tensors += 1
        self.counts.list_bytes += tensor.nbytes

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._profiler is not None:
            self._profiler(frame, event, arg)
        if self.launch is not None:
            if event == "return" and frame is self.launch:
                self.launch = None
        elif event == "call":
            self._count_call(frame)
        elif arg is torch.from_numpy and event.startswith("c_"):  # which the function mode is not asked about
            self._of_array += 1 if event == "c_call" else -1
        elif event == "return" and frame.f_code is StagingBuffer.to_device.__code__ and arg is not None:
            self.counts.device_bytes += arg.nbytes

    def _count_call(self, frame: FrameType) -> None:
        name, module = frame.f_code.co_qualname, frame.f_globals.get("__name__", "")
        if frame.f_code is torch.cuda.CUDAGraph.replay.__code__ or name == "CPUGraph.replay":
            self.counts.replays += 1
            self.launch = frame
        if module == __name__ or module.partition(".")[0] in OTHERS:
            return
        self.counts.calls[name] += 1
        if frame.f_code is Launch.__call__.__code__ or name in TRITON_LAUNCHES:
            self.counts.launches[_launcher(frame)] += 1
            self.launch = frame


watch = Watch  # `with watch() as seen: engine.decode_step_sessions(sessions)`


def _launcher(frame: FrameType) -> str:
    """The function that launches a kernel: the first one up the stack that is neither Triton's nor `Launch`."""
    launcher = frame.f_back
    while launcher is not None and launcher.f_globals.get("__name__", "").partition(".")[0] == "triton":
        launcher = launcher.f_back
    return launcher.f_code.co_name if launcher is not None else frame.f_code.co_name


def count_step(engine: InferenceEngine, sessions: Sequence[InferenceSession], part: str | None = None) -> Counts:
    """Decode one step of prefilled sessions, which take their tokens; returns what happened in its launch.

    part: one of the step's `stages`, such as `forward`, to count in that part alone. Raises `RequestFailed` for a
    session that has ended, `AttributeError` for a part that a step does not have.
    """
    require_running(sessions)
    seen, owner, name = watch(), engine.decode_step if part else engine, part or "launch"
    real = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        with seen:
            return real(*args, **kwargs)

    with patch.object(owner, name, watched):
        engine.launch(sessions)
    finish(engine, sessions)
    return seen.counts


def counts_table(counts: Mapping[str, Counts]) -> pd.DataFrame:
    """One column for each name, such as `before 038`; one row for each thing counted, unless it is 0 in all columns."""
    table = pd.DataFrame({name: seen.rows() for name, seen in counts.items()}).fillna(0).astype(int)
    return table[(table != 0).any(axis=1)]
