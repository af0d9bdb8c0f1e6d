"""Which entries of block tables does a part write anew, although they had been right already?

What it does is not watched; its memory is. Wherever a row lies that it has shown, the row is spoiled. If the part shows
the spoiled row in the next step, it has kept it; what is right in spite of that has been written in this step. A row
that lies nowhere may be kept in some other form: then it is the block list that is changed, where no signature tells.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ...config import EngineConfig
from ...lessons.l035_blocks import BlockTable, KVBlockManager
from ...request.session import InferenceSession
from ..world.oracle import Oracle
from ..world.pool import Tracked

Memory = tuple[int, int]  # (address, bytes)
WIDTHS = (np.int32, np.int64, np.int16)
LARGEST = 1 << 22  # bytes of memory that are searched
MOST = 100_000  # objects that are looked at
PAIR = 1_000_003  # makes one number of two, which few others have
# The most frequent first.
NOT_ITS_OWN = (int, str, float, KVBlockManager, EngineConfig, InferenceSession, BlockTable, ModuleType)
# Modules whose objects are a notebook's, and hold much.
OF_OTHERS = ("rosecourse.models", "rosecourse.measure", "rosecourse.records", "matplotlib", "IPython", "ipykernel")


@dataclass
class Row:
    """The beginning of a row that the part has shown, without the last block, which may have been replaced.

    b, layer: its place in the tables. ids: the block list as it is now. indices: what the row shows.
    """

    b: int
    layer: int
    ids: list[int]
    indices: list[int]
    spoiled: bool = False
    wrong: Sequence[int] = ()  # what it shows if it is written anew, once the list has been changed

    def change_list(self) -> None:
        """Turn the ids round, but for the last one: length and last block are what they were."""
        n = len(self.indices)
        self.wrong = self.indices[1:] + self.indices[:1]
        self.ids[:n] = self.ids[1:n] + self.ids[:1]


def ids_put_into_rows(oracle: Oracle, batch: Sequence[Tracked]) -> tuple[int, int]:
    """(how many there are, how many of them are written anew) of the ids that the part has shown in an earlier step.

    The step is made on a pool that nobody uses afterwards.
    """
    rows = [
        Row(b, layer, batch[b].table[layer], [oracle.index(i) for i in shown[:-1]])
        for b, layer, shown in oracle.lists_shown(batch)
        if len(shown) > 2
    ]
    roots = [oracle.part, *(vars(t.table) for t in batch)]
    memory = list(_memory(roots, type(oracle.part).__module__))
    _spoil(memory, [(tuple(row.indices), row) for row in rows])
    ids_kept = [row for row in rows if not row.spoiled and row.layer > 0]  # in layer 0 ids and indices are the same
    _spoil(memory, [(tuple(row.ids[: len(row.indices)]), row) for row in ids_kept])
    for row in rows:
        if not row.spoiled:
            row.change_list()
    tables = oracle.learner.call(oracle.part, *oracle.arguments(batch, oracle.next_tokens(batch))).tolist()
    anew = sum(
        shown == expected
        for row in rows
        for shown, expected in zip(tables[row.layer][row.b], row.wrong or row.indices, strict=False)
    )
    return sum(len(row.indices) for row in rows), anew


def _spoil(memory: list[Memory], patterns: list[tuple[tuple[int, ...], Row]]) -> None:
    """Write other blocks wherever one of the patterns lies."""
    begins: dict[int, list[tuple[tuple[int, ...], Row]]] = {}
    for pattern, row in patterns:
        begins.setdefault(pattern[0] * PAIR + pattern[1], []).append((pattern, row))
    codes = np.sort(np.fromiter(begins, np.int64, len(begins)))
    for address, size in memory if begins else ():
        for width in WIDTHS:
            numbers = _numbers(address, size // np.dtype(width).itemsize, width)
            values = numbers.astype(np.int64)
            pairs = values[:-1] * PAIR + values[1:]
            nearest = codes[np.searchsorted(codes[1:], pairs, side="right")]  # the largest that is not above it
            for at in np.flatnonzero(nearest == pairs):
                for pattern, row in begins[int(pairs[at])]:
                    if tuple(values[at : at + len(pattern)].tolist()) == pattern:
                        numbers[at : at + len(pattern)] = [value ^ 1 for value in pattern]
                        row.spoiled = True


def _numbers(address: int, count: int, width: Any) -> np.ndarray:
    """Memory as an array that can be written, whatever its owner says."""
    raw = (ctypes.c_char * (count * np.dtype(width).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=width)


# -- what a part holds ------------------------------------------------------------------------------------------------


def _memory(roots: Iterable[Any], module: str) -> Iterator[Memory]:
    """All memory that can be reached from some objects: of tensors, arrays, and whatever else is a buffer."""
    stack, seen = list(roots), set[int]()
    while stack and len(seen) < MOST:
        reached = stack.pop()
        if id(reached) in seen or isinstance(reached, NOT_ITS_OWN) or _is_anothers(reached, module):
            continue
        seen.add(id(reached))
        yield from _buffer(reached)
        stack += _held_by(reached)


def _is_anothers(reached: Any, module: str) -> bool:
    if isinstance(reached, type | FunctionType):
        return reached.__module__ != module
    return type(reached).__module__.startswith(OF_OTHERS)


def _held_by(reached: Any) -> list[Any]:
    if isinstance(reached, FunctionType):
        names = [value for name, value in reached.__globals__.items() if not name.startswith("__")]
        return [reached.__closure__, reached.__defaults__, reached.__kwdefaults__, vars(reached), *names]
    if isinstance(reached, np.ndarray):
        return [reached.base]
    return gc.get_referents(reached)


def _buffer(reached: Any) -> Iterator[Memory]:
    if isinstance(reached, torch.Tensor):
        if reached.device.type == "cpu" and reached.layout == torch.strided:
            storage = reached.untyped_storage()
            yield from _if_small(storage.data_ptr(), storage.nbytes())
        return
    try:
        raw = np.frombuffer(reached, dtype=np.uint8)
    except (TypeError, ValueError, BufferError, AttributeError):
        return
    yield from _if_small(raw.ctypes.data, raw.nbytes)


def _if_small(address: int, size: int) -> Iterator[Memory]:
    if 0 < size <= LARGEST:
        yield address, size
