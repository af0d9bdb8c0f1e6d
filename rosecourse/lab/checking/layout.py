"""How a cache keeps its blocks: all that a pool and its judges ask of it, for each kind of cache.

Judges know a block by one number for each layer, its id: layer × num_blocks + its index in the layer. Where a session
has one table for all layers, a block of it has an id in each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ...errors import ConfigError
from ...kv import blocks as one_table
from ...lessons import l035_blocks as blocks

IdLists = Sequence[Sequence[int]]  # for each layer the ids of a session's blocks, in their order


class Layout(ABC):
    """A kind of cache. kind, table: its class, and that of a session's table. cache: the class of the lab's own ones.
    kv: always a cache of this kind."""

    kind: type
    cache: type
    changes: frozenset[str] = frozenset()  # attributes that a cache of this kind replaces by itself
    table: type

    @abstractmethod
    def id_lists(self, kv: Any, table: Any) -> IdLists:
        """For each layer the ids of the blocks that a table shows."""

    @abstractmethod
    def info(self, kv: Any, block_id: int) -> Any:
        """The cache's own record of a block, which has `owners`; None for a free one."""

    @abstractmethod
    def info_in_use(self, kv: Any, block_id: int) -> Any:
        """The same of a block that has to be in use. Raises `BlockError` for a free one."""

    @abstractmethod
    def in_use(self, kv: Any) -> Mapping[int, Any]:
        """Id -> the cache's own record of each block that is in use."""

    @abstractmethod
    def free_lists(self, kv: Any) -> list[list[int]]:
        """The indices of free blocks, in lists from whose ends they are taken. Each may be reordered."""

    @abstractmethod
    def blocks_to_append(self, kv: Any, tables: Sequence[Any]) -> int:
        """How many blocks, in each layer, one more token of each of these sessions needs."""

    @abstractmethod
    def put_caches(self, kv: Any, keys: Tensor, values: Tensor) -> None:
        """Let the cache use other memory. keys, values: [L, num_blocks, H, block_size, D]."""

    @abstractmethod
    def fill(self, table: Any, taken: Any) -> None:
        """Let an empty table be the one that was taken for it."""

    @abstractmethod
    def name(self, layer: int, index: int, block_id: int) -> str:
        """A block as a fault tells it."""

    @abstractmethod
    def one_block_more(self, kv: Any, room: int) -> tuple[str, str]:
        """What was expected and what was found where a step took more blocks than the `room` that there was."""

    def inner_lists(self, table: Any) -> list[list[int]]:
        """The lists that a table is made of; none if it is one itself."""
        return []

    def audit(self, kv: Any, tables: Iterable[Any], cached: Iterable[Any] = ()) -> None:
        """The class's own `audit`, whatever has been put over it in the object."""
        self.cache.audit(kv, tables, cached)  # type: ignore[attr-defined]


class PerLayer(Layout):
    """Lists of its own for each layer, in lessons 035 to 061."""

    kind = cache = blocks.KVBlockManager
    table = blocks.BlockTable

    def id_lists(self, kv: Any, table: Any) -> IdLists:
        return table

    def info(self, kv: Any, block_id: int) -> Any:
        return kv.blocks_in_use.get(block_id)

    def info_in_use(self, kv: Any, block_id: int) -> Any:
        return kv.info(block_id)

    def in_use(self, kv: Any) -> Mapping[int, Any]:
        return kv.blocks_in_use

    def free_lists(self, kv: Any) -> list[list[int]]:
        return [kv.free_blocks(layer) for layer in range(kv.num_layers)]

    def blocks_to_append(self, kv: Any, tables: Sequence[Any]) -> int:
        return kv.blocks_to_append([table[0] for table in tables])

    def put_caches(self, kv: Any, keys: Tensor, values: Tensor) -> None:
        kv.k_layers, kv.v_layers = keys.unbind(), values.unbind()

    def fill(self, table: Any, taken: Any) -> None:
        for ids, new in zip(table, taken, strict=True):
            ids += new

    def name(self, layer: int, index: int, block_id: int) -> str:
        return f"block {index} of layer {layer}" + (f" (id {block_id})" if layer else "")

    def one_block_more(self, kv: Any, room: int) -> tuple[str, str]:
        empty = next((layer for layer, free in enumerate(self.free_lists(kv)) if not free), 0)
        return f"expected: at most {room} new blocks in each layer", f"found: one more in layer {empty}"

    def inner_lists(self, table: Any) -> list[list[int]]:
        return list(table)


class WatchedKVBlockManager(one_table.KVBlockManager):
    """One without a block for pads, which looks at all tables in each step, whatever a part has done to them."""

    spare_blocks = 0

    def _has_room(self, tables: Sequence[one_table.BlockTable]) -> bool:
        return False


class OneTable(Layout):
    """One list for all layers, in the lessons from 062 on: block n is the n-th block of each layer."""

    kind, cache, table = one_table.KVBlockManager, WatchedKVBlockManager, one_table.BlockTable
    changes = frozenset({"placements", "_room_until"})

    def id_lists(self, kv: Any, table: Any) -> IdLists:
        return [[layer * kv.num_blocks + block for block in table] for layer in range(kv.num_layers)]

    def info(self, kv: Any, block_id: int) -> Any:
        return kv.blocks_in_use.get(block_id % kv.num_blocks)

    def info_in_use(self, kv: Any, block_id: int) -> Any:
        return kv.info(block_id % kv.num_blocks)

    def in_use(self, kv: Any) -> Mapping[int, Any]:
        layers = range(kv.num_layers)
        return {layer * kv.num_blocks + block: info for layer in layers for block, info in kv.blocks_in_use.items()}

    def free_lists(self, kv: Any) -> list[list[int]]:
        return [kv.free_blocks()]

    def blocks_to_append(self, kv: Any, tables: Sequence[Any]) -> int:
        return kv.blocks_to_append(tables)

    def put_caches(self, kv: Any, keys: Tensor, values: Tensor) -> None:
        kv.keys, kv.values = keys, values
        kv.k_layers, kv.v_layers = keys.unbind(), values.unbind()

    def fill(self, table: Any, taken: Any) -> None:
        table += taken
        table.num_tokens = taken.num_tokens

    def name(self, layer: int, index: int, block_id: int) -> str:
        return f"block {index} in layer {layer}"

    def one_block_more(self, kv: Any, room: int) -> tuple[str, str]:
        return f"expected: at most {room} new blocks", "found: one more"


PER_LAYER, ONE_TABLE = PerLayer(), OneTable()
LAYOUTS = (PER_LAYER, ONE_TABLE)


def layout_of(kv: object) -> Layout:
    """The layout of an engine's cache. Raises `ConfigError` for a cache of another kind."""
    for layout in LAYOUTS:
        if isinstance(kv, layout.kind):
            return layout
    raise ConfigError(f"the lab reads caches of the class KVBlockManager, not {type(kv).__name__}")


def place_and_copy(kv: one_table.KVBlockManager, tables: Sequence[one_table.BlockTable]) -> None:
    """Make room for one more token of each session, and the copies that this asks for, one after another."""
    for source, destination in kv.place(tables):
        for cache in (kv.keys, kv.values):
            cache[:, destination] = cache[:, source]
