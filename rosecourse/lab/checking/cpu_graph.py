"""A graph of operations on a CPU, for learning and testing: the traps of CUDA graphs, wherever there is no GPU.

What it does not show: asynchrony, memory that several graphs share, and speed. It runs each recorded operation anew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ...decode.graphs import CUDAGraphs, Graph, Work
from ...errors import RosecourseError
from ...kernels.launch import Launch
from ...measure.counters import DispatchMode

READS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__")
FOLLOWS_DATA = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class CaptureError(RosecourseError, RuntimeError):
    """An operation that cannot be a part of a graph. Nothing has been recorded."""


class CPUGraph:
    """The operations of some work, with the tensors that they read and write; a replay does them again, in place.

    Raises `CaptureError` for what no graph can hold: a number that the host reads off a tensor, or a shape that follows
    the data. A capture that fails records nothing.
    """

    def __init__(self) -> None:
        self.operations: list[Callable[[], None]] = []

    def warm_up(self, work: Work) -> None:
        """Nothing is compiled for a CPU."""

    def capture(self, work: Work) -> None:
        """Record what the work does. Tensors that it changes stay as they are, and those that it makes are poisoned."""
        recorded: list[Callable[[], None]] = []
        launches = Launch.handed_to(lambda launch, grid, args: recorded.append(lambda: launch(grid, *args)))
        with launches, _Recording(recorded), _HostReads():
            work()
        self.operations = recorded

    def replay(self) -> None:
        for operation in self.operations:
            operation()


class _HostReads(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            raise CaptureError(
                f"`{name.strip('_')}` reads a tensor on the host while a graph is captured: its number would be "
                "frozen. Leave the decision to the device, or take it before the capture"
            )
        return func(*args, **(kwargs or {}))


class _Recording(DispatchMode):
    """Keeps each operation for later. Views are made at once: they are nothing but another look at the same memory."""

    def __init__(self, recorded: list[Callable[[], None]]) -> None:
        super().__init__()
        self.recorded = recorded

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _follows_data(func, args):
            raise CaptureError(
                f"the shape of what `{func}` returns follows the data, and a graph's tensors keep theirs"
            )
        if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.is_mutable:
            self.recorded.append(lambda: func(*args, **kwargs))
            return kwargs["out"] if "out" in kwargs else args[0]
        if any(out.alias_info is not None for out in func._schema.returns):  # a view
            return func(*args, **kwargs)
        made = _poisoned(func, args, kwargs)
        self.recorded.append(lambda: _write(made, func(*args, **kwargs)))
        return made


def _follows_data(func: Any, args: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:  # by numbers it has the shape of the numbers, by a mask as many as are True
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return any(tag in func.tags for tag in FOLLOWS_DATA)


def _poisoned(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation would return, of the right sizes, with NaN or the smallest integer in it."""
    try:
        given, named = tree_map_only(torch.Tensor, _without_numbers, (args, kwargs))
        if any(argument.name == "device" for argument in func._schema.arguments):
            named["device"] = "meta"
        return tree_map_only(torch.Tensor, _poison, func(*given, **named))
    except RuntimeError as error:
        raise CaptureError(f"`{func}` cannot be recorded: {str(error).partition(chr(10))[0]}") from error


def _without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _poison(like: torch.Tensor) -> torch.Tensor:
    poisoned = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="cpu")
    if like.dtype == torch.bool:
        return poisoned.fill_(True)
    return poisoned.fill_(float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).min)


def _write(made: Any, values: Any) -> None:
    for tensor, value in zip(tree_leaves(made), tree_leaves(values), strict=True):
        tensor.copy_(value)


Maker = Callable[[], Graph]

# What makes the graphs of a CPU: others in the place of `CPUGraph` may note what is done with them.
_ON_A_CPU: ContextVar[Maker] = ContextVar("graphs of a CPU", default=CPUGraph)


def graphs_for(device: torch.device) -> Maker:
    """What makes a graph on a device: `new_graph = graphs_for(kv.device)`, and then `graph = new_graph()`."""
    return CUDAGraphs() if device.type == "cuda" else _ON_A_CPU.get()


@contextmanager
def cpu_graphs_by(maker: Maker) -> Iterator[None]:
    """In here `graphs_for` gives another maker on a CPU."""
    token = _ON_A_CPU.set(maker)
    try:
        yield
    finally:
        _ON_A_CPU.reset(token)
