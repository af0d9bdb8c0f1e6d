"""Counters that are true on every machine: what a running engine does, seen from outside.

The interpreter's profiler sees Python calls, a dispatch mode sees torch operations, and a function mode sees for which
device a tensor is made. The engine is neither asked nor changed, so a learner's own class is counted like ours. Only
the thread that watches is seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pandas as pd
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..engine.engine import InferenceEngine
from ..kernels.launch import Launch
from ..kv.buffers import StagingBuffer
from ..request.session import InferenceSession
from .dispatch_mode import DispatchMode
from .one_step import finish
from .whole_runs import require_running

TRITON_LAUNCHES = ("GridExecutor.__call__", "JITFunction.run")  # in the interpreter, and on a GPU
OTHERS = sys.stdlib_module_names | {"torch"}  # whose Python calls say nothing of the engine
# The operations that a table shows: those that move K, V, tables and indices. The model's own are left out, because
# torch versions and devices split them in different ways.
OPERATIONS = ("index_select", "index_put", "index_copy", "index", "gather", "scatter", "stack", "cat", "copy")


class OperationCounter(DispatchMode):
    """Counts the torch operations that run inside a `with` block, by name, such as `index_select`.

    A tensor made from a Python list counts as `from_list`. Views, which move nothing, count under their own names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        self.counts["from_list" if name in ("lift_fresh", "lift_fresh_copy") else name] += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Counts:
    """What was seen while an engine ran.

    calls: Python calls by qualified name, such as `KVBlockManager.append_token`, without those of torch and of Python.
    operations: torch operations by name, in-place ones with their `_`; views too. Those inside a launch do not count:
        without a GPU they are the work of Triton's interpreter. Nor do those of a replay.
    list_tensors, list_bytes: tensors made from Python lists (or other host data), and how many bytes they hold. A
        NumPy array that is looked at as a tensor counts where it is moved to the device.
    device_bytes: bytes handed to the device: tensors made from lists with a `device=`, lists used as an index, and what
        `StagingBuffer.to_device` gives. On CUDA they are copied; on a CPU nothing moves, and these are what would be.
    numpy_views: tensors opened as NumPy arrays, through which they may be read or written unseen.
    launches: launches of Triton kernels, by the name of the function that launches them.
    at_host: how many of the operations no device hears of: views, and named ranges.
    replays: replays of a graph; replayed: the operations that they did, where the graph knows (`lab.world.cpu_graph`).
    """

    calls: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    list_tensors: int = 0
    list_bytes: int = 0
    device_bytes: int = 0
    numpy_views: int = 0
    launches: Counter[str] = field(default_factory=Counter)
    at_host: int = 0
    replays: int = 0
    replayed: int = 0

    @property
    def sent(self) -> int:
        """What the host has sent to the device: operations not `at_host`, launches, and replays as one each."""
        return self.operations.total() - self.at_host + self.launches.total() + self.replays

    def calls_of(self, name: str) -> int:
        """Calls of functions and methods of this name, in whatever class."""
        return sum(n for qualified, n in self.calls.items() if qualified.rpartition(".")[2] == name)

    def operations_of(self, name: str) -> int:
        """Torch operations of this name, in place or not."""
        return self.operations[name] + self.operations[name + "_"]

    def rows(self, launched: Sequence[str] | None = None) -> dict[str, int]:
        """The counts in plain words, in the order of the table. launched: kernels that get a row; None: those seen."""
        kernels = sorted(self.launches) if launched is None else launched
        return {
            "append_token calls": self.calls_of("append_token"),
            "append_token_batch calls": self.calls_of("append_token_batch"),
            **{f"{name} launches": self.launches[name] for name in kernels},
            "tensors built from Python lists": self.list_tensors,
            "bytes of these": self.list_bytes,
            "bytes handed to the device": self.device_bytes,
            "tensors opened as NumPy arrays": self.numpy_views,
            **{name: self.operations_of(name) for name in OPERATIONS},
            "select (a view)": self.operations_of("select"),
            "replays of a graph": self.replays,
            "operations in these": self.replayed,
        }


class _Operations(OperationCounter):
    """Counts operations, and the tensors that come from lists."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.seen, self.counts = counts, counts.operations
        self.on_host = False  # whether a tensor that is being made stays on the host
        self.launch: FrameType | None = None  # the one in progress, or a replay
        self.of_array = 0  # calls in progress that make a tensor that is another look at a NumPy array
        self.arrays: list[torch.Tensor] = []  # which count where they are moved

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.launch is not None:
            return func(*args, **(kwargs or {}))
        if self.of_array > 0:
            self.arrays.append(result := func(*args, **(kwargs or {})))
            return result
        before = self.counts["from_list"]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.seen.at_host += func.namespace == "profiler" or _is_view(func, args, result)
        if self.counts["from_list"] > before and result.dim() > 0:  # a tensor of no dimensions was a number, not a list
            self.seen.list_tensors += 1
            self.seen.list_bytes += result.nbytes
            self.seen.device_bytes += 0 if self.on_host else result.nbytes
        return result


def _is_view(func: Any, args: tuple, result: Any) -> bool:
    """Whether an operation has only made another look at its first argument; `reshape` and `to` may have copied it."""
    if func._schema.is_mutable or not any(out.alias_info is not None for out in func._schema.returns):
        return False
    looks = [one for one in tree_leaves(result) if one.layout == args[0].layout == torch.strided]
    return all(one.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr() for one in looks)


class _Places(TorchFunctionMode):
    """Sees for which device a tensor is made: on a CPU this is lost by the time operations are dispatched.

    It also sees NumPy's views, which are not operations either.
    """

    MAKERS = (torch.tensor, torch.as_tensor)
    MOVERS = (torch.Tensor.to, torch.Tensor.cuda)

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self.operations = operations
        self.made_on_host: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self.operations.seen.numpy_views += func is torch.Tensor.numpy
        if func in self.MOVERS and not isinstance((*args[1:], *kwargs.values(), None)[0], torch.dtype):
            self._moved(args[0])
        if func not in self.MAKERS or kwargs.get("device") not in (None, "cpu"):  # a word: for the host, on any machine
            return func(*args, **kwargs)
        self.operations.on_host = True
        try:
            result = func(*args, **kwargs)
        finally:
            self.operations.on_host = False
        self.made_on_host.append(result)
        return result

    def _moved(self, tensor: torch.Tensor) -> None:
        """A tensor goes to the device."""
        seen = self.operations.seen
        of_array = any(tensor is array for array in self.operations.arrays)
        if of_array:
            seen.list_tensors += 1
            seen.list_bytes += tensor.nbytes
        if of_array or any(tensor is made for made in self.made_on_host):
            seen.device_bytes += tensor.nbytes


class Watch:
    """Counts what this thread does between its `with` and the end of the block; a further `with` adds to it."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._operations = _Operations(self.counts)
        self._places = _Places(self._operations)
        self._profiler: Any = None

    def __enter__(self) -> Counts:
        self._places.__enter__()
        self._operations.__enter__()
        self._profiler = sys.getprofile()  # another watch around this one, for instance: it keeps seeing
        sys.setprofile(self._profile)
        return self.counts

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._profiler)
        self._operations.launch, self._operations.of_array = None, 0
        self._operations.__exit__(*error)
        self._places.__exit__(*error)
        self._places.made_on_host.clear()
        self._operations.arrays.clear()

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._profiler is not None:
            self._profiler(frame, event, arg)
        if self._operations.launch is not None:
            if event == "return" and frame is self._operations.launch:
                self._operations.launch = None
        elif event == "call":
            self._count_call(frame)
        elif arg is torch.from_numpy and event.startswith(
            "c_"
        ):  # a C function that the function mode is not asked about
            self._operations.of_array += 1 if event == "c_call" else -1
        elif event == "return" and frame.f_code is StagingBuffer.to_device.__code__ and arg is not None:
            self.counts.device_bytes += arg.nbytes

    def _count_call(self, frame: FrameType) -> None:
        if frame.f_code is torch.cuda.CUDAGraph.replay.__code__ or frame.f_code.co_qualname == "CPUGraph.replay":
            self.counts.replays += 1
            self.counts.replayed += len(getattr(frame.f_locals["self"], "operations", ()))
            self._operations.launch = frame
        name, module = frame.f_code.co_qualname, frame.f_globals.get("__name__", "")
        if module == __name__ or module.partition(".")[0] in OTHERS:
            return
        self.counts.calls[name] += 1
        if frame.f_code is Launch.__call__.__code__ or name in TRITON_LAUNCHES:
            self.counts.launches[_launcher(frame)] += 1
            self._operations.launch = frame


def _launcher(frame: FrameType) -> str:
    """The function that launches a kernel: the first one up the stack that is neither Triton's nor `Launch`."""
    launcher = frame.f_back
    while launcher is not None and launcher.f_globals.get("__name__", "").partition(".")[0] == "triton":
        launcher = launcher.f_back
    return launcher.f_code.co_name if launcher is not None else frame.f_code.co_name


def watch() -> Watch:
    """Count what happens inside a `with` block: `with watch() as seen: engine.decode_step_sessions(sessions)`."""
    return Watch()


@contextmanager
def watch_part(engine: InferenceEngine, part: str) -> Iterator[Counts]:
    """Count what happens inside one part of an engine's decode step, such as `kv_append`, and nowhere else.

    The engine is left as it was. Raises `AttributeError` for a part that a decode step does not have.
    """
    step, seen = engine.decode_step, Watch()
    real = getattr(step, part)

    def watched(*args: Any, **kwargs: Any) -> Any:
        with seen:
            return real(*args, **kwargs)

    setattr(step, part, watched)
    try:
        yield seen.counts
    finally:
        setattr(step, part, real)


def count_step(engine: InferenceEngine, sessions: Sequence[InferenceSession], part: str | None = None) -> Counts:
    """Decode one step of prefilled sessions, which take their tokens; returns what happened in it.

    part: one of the step's `stages`, such as `forward`, to count in that part alone; None is the launch of the
    step, without what the host reads afterwards. For a step right after a fork, call `forks.fork_anew` before.
    Raises `RequestFailed` for a session that has ended.
    """
    require_running(sessions)
    with watch() if part is None else watch_part(engine, part) as seen:
        engine.launch(sessions)
    finish(engine, sessions)
    return seen


def counts_table(counts: Mapping[str, Counts]) -> pd.DataFrame:
    """One column for each name, such as `before 038`; one row for each thing counted, unless it is 0 in all columns."""
    launched = sorted({kernel for seen in counts.values() for kernel in seen.launches})
    table = pd.DataFrame({name: seen.rows(launched) for name, seen in counts.items()})
    return table[(table != 0).any(axis=1)]
