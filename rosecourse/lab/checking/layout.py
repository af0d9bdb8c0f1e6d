"""How a cache keeps its blocks: all that a pool and its judges ask of it, for each kind of cache.

Judges know a block by one number for each layer, its id: layer × num_blocks + its index in the layer. Where a session
has one table for all layers, a block of it has an id in each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ...errors import ConfigError
from ...kv import blocks as one_table
from ...lessons import l035_blocks as blocks

IdLists = Sequence[Sequence[int]]  # for each layer the ids of a session's blocks, in their order


class PerLayer:
    """Lists of its own for each layer, in lessons 035 to 061. kind: the cache's class; cache: that of the lab's own
    ones. changes: attributes that a cache of this kind replaces by itself."""

    kind: type = blocks.KVBlockManager
    cache: Any = blocks.KVBlockManager
    changes: frozenset[str] = frozenset()

    def id_lists(self, kv: Any, table: Any) -> IdLists:
        """For each layer the ids of the blocks that a table shows."""
        return [list(ids) for ids in table]

    def info_in_use(self, kv: Any, block_id: int) -> Any:
        """The cache's own record of a block, which has `owners`. Raises `BlockError` for a free one."""
        return kv.info(block_id)

    def in_use(self, kv: Any) -> Mapping[int, Any]:
        """Id -> the cache's own record of each block that is in use."""
        return dict(kv.blocks_in_use)

    def free_lists(self, kv: Any) -> list[list[int]]:
        """The indices of free blocks, in lists from whose ends they are taken. Each may be reordered."""
        return [kv.free_blocks(layer) for layer in range(kv.num_layers)]

    def blocks_to_append(self, kv: Any, tables: Sequence[Any]) -> int:
        """How many blocks, in each layer, one more token of each of these sessions needs."""
        return int(kv.blocks_to_append([table[0] for table in tables]))

    def put_caches(self, kv: Any, keys: Tensor, values: Tensor) -> None:
        """Let the cache use other memory. keys, values: [L, num_blocks, H, block_size, D]."""
        kv.k_layers, kv.v_layers = keys.unbind(), values.unbind()

    def audit(self, kv: Any, tables: Iterable[Any], cached: Iterable[Any] = ()) -> None:
        """The class's own `audit`, whatever has been put over it in the object."""
        self.cache.audit(kv, tables, cached)


class WatchedKVBlockManager(one_table.KVBlockManager):
    """One without a block for pads, which looks at all tables in each step, whatever a part has done to them."""

    spare_blocks = 0

    def _has_room(self, tables: Sequence[one_table.BlockTable]) -> bool:
        return False


class OneTable(PerLayer):
    """One list for all layers, in the lessons from 062 on: block n is the n-th block of each layer."""

    kind, cache = one_table.KVBlockManager, WatchedKVBlockManager
    changes = frozenset({"placements", "_room_until"})

    def id_lists(self, kv: Any, table: Any) -> IdLists:
        return [[layer * kv.num_blocks + block for block in table] for layer in range(kv.num_layers)]

    def info_in_use(self, kv: Any, block_id: int) -> Any:
        return kv.info(block_id % kv.num_blocks)

    def in_use(self, kv: Any) -> Mapping[int, Any]:
        layers = range(kv.num_layers)
        return {layer * kv.num_blocks + block: info for layer in layers for block, info in kv.blocks_in_use.items()}

    def free_lists(self, kv: Any) -> list[list[int]]:
        return [kv.free_blocks()]

    def blocks_to_append(self, kv: Any, tables: Sequence[Any]) -> int:
        return int(kv.blocks_to_append(tables))

    def put_caches(self, kv: Any, keys: Tensor, values: Tensor) -> None:
        super().put_caches(kv, keys, values)
        kv.keys, kv.values = keys, values


PER_LAYER, ONE_TABLE = PerLayer(), OneTable()
LAYOUTS = (PER_LAYER, ONE_TABLE)


def layout_of(kv: object) -> PerLayer:
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
