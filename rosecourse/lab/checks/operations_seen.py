"""Torch operations of a step, told apart by what they do to memory and not by their names.

An operation whose result is a tensor in new memory, or that writes into a tensor, moves data; a view moves none.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from ...measure.counters import DispatchMode

LIFTS = ("lift_fresh", "lift_fresh_copy")  # a tensor has just been made of host data
FILLS = ("full", "full_like", "new_full")
EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
SUBSCRIPTS = ("BINARY_SUBSCR", "STORE_SUBSCR", "BINARY_SLICE", "STORE_SLICE")
NOT_THE_PARTS = ("torch", "rosecourse.measure", "rosecourse.lab.checks")


class Operations(DispatchMode):
    """Counts within a `with` block what operations do beside the launches of kernels.

    moves: operations that move data. copies: those that put rows of K and V, or what was computed from them, anywhere
    but into the cache. list_tensors: tensors of one dimension or more that are made of Python lists; indexed: those of
    them that an indexing by a list makes. index_tensors: tensors of whole numbers that are made of host data, or of one
    number; used_as_index: tensors made in the step by which K, V or the cache is indexed. launching: the frame of the
    launch that is under way, which somebody else sets.
    """

    def __init__(self, caches: Iterable[torch.Tensor], row: int) -> None:
        """caches: K and V of all layers. row: the number of elements of one token's K."""
        super().__init__()
        self.moves = self.copies = self.list_tensors = self.indexed = self.made_of_host_data = 0
        self.launching: FrameType | None = None
        self._caches, self._row = {_memory(cache) for cache in caches}, row
        self._made: dict[int, torch.Tensor] = {}  # memory -> its tensor, held so that no other gets the same memory
        self._used: set[int] = set()

    @property
    def index_tensors(self) -> int:
        return max(self.made_of_host_data, len(self._used))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.launching is None:
            self._look_at(func.overloadpacket.__name__, list(_tensors((args, kwargs))), list(_tensors(result)))
        return result

    def _look_at(self, name: str, given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        written = _written(name, given, results)
        if "index" in name or name.rstrip("_") in ("gather", "scatter", "put", "take"):
            self._note_indices(given)
        if name in LIFTS and results:
            self._note_host_data(results[0])
        elif name not in EMPTY:
            self.moves += bool(written)
            self.made_of_host_data += name in FILLS and any(map(_is_index, results))
            self.copies += any(map(self._is_outside, given)) and any(map(self._is_outside, written))
        for made in results:
            self._made.setdefault(_memory(made), made)

    def _note_host_data(self, made: torch.Tensor) -> None:
        shared = not made.untyped_storage().resizable()  # with NumPy, or with a buffer
        self.made_of_host_data += _is_index(made)
        self.copies += shared and self._is_outside(made)
        if not shared and made.dim() > 0:
            self.moves += 1
            self.list_tensors += 1
            self.indexed += _is_at_a_subscript()

    def _note_indices(self, given: list[torch.Tensor]) -> None:
        if given and given[0].is_floating_point():
            self._used |= {_memory(index) for index in given[1:] if _is_index(index)} & self._made.keys()

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether it holds rows of K or V, at least one, and is no part of the cache."""
        large = tensor.is_floating_point() and tensor.numel() >= self._row
        return large and _memory(tensor) not in self._caches


def _written(name: str, given: list[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results that the operation has written, in new memory or in that of an argument."""
    if name.endswith("_"):
        return results
    before = {_memory(tensor) for tensor in given}
    is_given = {id(tensor) for tensor in given[1:]}  # `out=`; what comes first may come back as it is
    return [made for made in results if _memory(made) not in before or id(made) in is_given]


def _is_index(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dim() > 0


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """All tensors in some values, but for sparse ones, which do not lie in one piece of memory."""
    if isinstance(values, torch.Tensor):
        if values.layout == torch.strided:
            yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _is_at_a_subscript() -> bool:
    """Whether the part's own line is in the middle of an indexing."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(NOT_THE_PARTS):
        frame = frame.f_back
    return frame is not None and dis.opname[frame.f_code.co_code[frame.f_lasti]] in SUBSCRIPTS
