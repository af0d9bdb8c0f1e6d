"""What is seen of a part's operations: what a step moves, what the host reads, which tensors are made."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...decode.ops import MULTIPLE
from ...kernels.reference import add_norm
from ...measure.counters import DispatchMode
from . import Wrong, kind_of
from .kernel_memory import Access, Listener, heard_by

READS = ("item", "tolist", "numpy", "nonzero", "equal", "allclose", "__bool__", "__int__", "__float__", "__index__")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv")
NO_DATA = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")  # operations that write nothing


def moves_data(func: Any) -> bool:
    """Whether an operation of the dispatcher writes anything: views do not, nor does memory that is only reserved."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "profiler" or name in NO_DATA:
        return False
    is_view = any(returned.alias_info is not None for returned in func._schema.returns)
    return func._schema.is_mutable or not is_view


class Born(DispatchMode):
    """Remembers the tensors that are made in a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, list | tuple) else [result]
        self.made += [weakref.ref(one) for one in made if isinstance(one, Tensor)]
        return result

    def alive(self) -> str:
        """Those that are still there, in words."""
        left = [tensor for ref in self.made if (tensor := ref()) is not None]
        return ", ".join(dict.fromkeys(map(kind_of, left)))


class Launches(Listener):
    """under_way: whether the launch of a kernel is, whose operations are not the part's."""

    under_way = False

    def launch(self, kernel: str, options: dict[str, Any]) -> None:
        self.under_way = True

    def ended(self) -> None:
        self.under_way = False


class _NoReads(TorchFunctionMode):
    def __init__(self, method: str, launches: Launches) -> None:
        super().__init__()
        self.method, self.launches = method, launches

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and not self.launches.under_way:
            raise Wrong(f"the host must read no number of a tensor in a step; in `{self.method}` it does, by `{name}`")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_reads(method: str) -> Iterator[None]:
    """In here the host may read no number, but in the launch of a kernel."""
    launches = Launches()
    with heard_by(launches), _NoReads(method, launches):
        yield


class AddNorms:
    """Calls of `add_norm` in a `with` block, by whomever: on a GPU it is one kernel, and reads rows one after another.

    number: of the calls. under_way: whether one is. wrong: what the first wrong call is given, in words.
    """

    def __init__(self) -> None:
        self.number, self.under_way, self.wrong = 0, False, ""

    def __enter__(self) -> AddNorms:
        self._before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _profile(self, frame: FrameType, event: Any, arg: Any) -> None:
        if self._before is not None:
            self._before(frame, event, arg)
        if frame.f_code is add_norm.__code__ and event in ("call", "return"):
            self.under_way = event == "call"
            if self.under_way:
                self.number += 1
                self.wrong = self.wrong or _wrong(frame.f_locals)


def _wrong(given: dict[str, Any]) -> str:
    x, width = given["x"], len(given["weight"])
    for name in ("x", "delta"):
        tensor = given[name]
        if tensor.shape != (len(x), width) or not tensor.is_contiguous() or tensor.dtype != x.dtype:
            return (
                f"`add_norm` must be given an x and a delta [{len(x)}, {width}] of one dtype, contiguous; found: "
                f"{name} {list(tensor.shape)} of {tensor.dtype} with strides {tensor.stride()}"
            )
    return ""


class DataMoves(DispatchMode):
    """operations: that move data, in a `with` block. is_aside: whether what is under way is not counted."""

    def __init__(self, is_aside: Callable[[], bool]) -> None:
        super().__init__()
        self.is_aside, self.operations = is_aside, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_aside():
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        made = func(*args, **kwargs)
        self.operations += moves_data(func)
        self.look(func, made)
        return made

    def look(self, func: Any, made: Any) -> None:
        """An operation has made something."""


class Moves(Launches, DataMoves):
    """What a step moves. operations: those of PyTorch, where `add_norm` is one, and launches. columns: of the product
    that makes the logits, where they are no multiple of 256, else 0. times_read: how often a launch has read a tensor
    of more than `large` numbers, the most of all launches."""

    def __init__(self, large: int) -> None:
        super().__init__(lambda: self.under_way or self.adds.under_way)
        self.large, self.adds = large, AddNorms()
        self.columns = self.times_read = 0
        self._method = ""
        self._read: Counter[int] = Counter()  # by the launch under way: address of a tensor's memory -> bytes

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        if method == "attention":
            yield
            return
        self._method, self.adds = method, AddNorms()
        with heard_by(self), self, self.adds:
            yield
        self.operations += self.adds.number

    def look(self, func: Any, made: Any) -> None:
        if self._method == "logits" and func.overloadpacket.__name__ in PRODUCTS and made.shape[-1] % MULTIPLE:
            self.columns = made.shape[-1]

    def launch(self, kernel: str, options: dict[str, Any]) -> None:
        super().launch(kernel, options)
        self.operations += 1
        self._read.clear()

    def access(self, access: Access) -> None:
        """A number that a load reads several times, as one does that keeps its lanes inside, has been read once."""
        for memory in access.launched if access.verb == "reads" else ():
            if memory.tensor.numel() > self.large:
                inside = access.addresses[(access.addresses >= memory.start) & (access.addresses < memory.end)]
                self._read[memory.start] += len(np.unique(inside)) * memory.tensor.element_size()
                self.times_read = max(self.times_read, self._read[memory.start] // (memory.end - memory.start))
