"""One layer of a paged KV cache at one moment, read from the running engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..checks import require
from ..errors import BlockError
from ..lessons.l035_blocks import BlockIdsPerLayer, KVBlockManager
from .sheet import OWNER_COLOURS, counted, plain


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block at one moment. names: of the owners that the picture knows, at most `owners` of them."""

    block_index: int
    start: int = 0
    length: int = 0
    owners: int = 0
    cached: bool = False
    names: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        return self.owners == 0 and not self.cached

    @property
    def num_others(self) -> int:
        return self.owners - len(self.names)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One layer of the pool at one moment. tables: each session's block indices, in the order of its tokens."""

    layer_idx: int
    block_size: int
    blocks: tuple[BlockState, ...]
    tables: tuple[tuple[str, tuple[int, ...]], ...]
    colour_order: tuple[str, ...]  # a session keeps its colour in later pictures, whoever comes and goes

    def colour(self, name: str) -> str:
        return OWNER_COLOURS[self.colour_order.index(name) % len(OWNER_COLOURS)]

    def num_tokens(self, indices: Sequence[int]) -> int:
        return sum(self.blocks[index].length for index in indices)


def take_snapshot(
    kv: KVBlockManager, tables: Mapping[str, BlockIdsPerLayer], layer_idx: int, colour_order: tuple[str, ...] = ()
) -> Snapshot:
    """One layer of the pool as it is now. colour_order: the sessions that have a colour in an earlier picture.

    Raises `BlockError` for a table that is freed or not of this cache, and `ConfigError` for a layer that cannot be.
    """
    there = type(layer_idx) is int and 0 <= layer_idx < kv.num_layers
    require(there, f"layer_idx is {layer_idx!r}: the cache has layers 0 to {kv.num_layers - 1}")
    told = 'tables is not a mapping: give names and tables, such as {"A": session.block_ids_per_layer}'
    require(isinstance(tables, Mapping), told)
    rows = tuple((plain(name), _indices(kv, name, table, layer_idx)) for name, table in tables.items())
    blocks = []
    for index in range(kv.num_blocks):
        names = tuple(name for name, indices in rows if index in indices)
        blocks.append(_state(kv, layer_idx, index, names))
    colours = tuple(dict.fromkeys([*colour_order, *(name for name, _ in rows)]))
    return Snapshot(layer_idx, kv.block_size, tuple(blocks), rows, colours)


def _indices(kv: KVBlockManager, name: object, table: BlockIdsPerLayer, layer_idx: int) -> tuple[int, ...]:
    """The block indices that a table shows in one layer."""
    if table is None or getattr(table, "freed", False):
        told = "it was freed, or never computed; prefill it or leave it out"
        raise BlockError(f"session {name!r} holds no blocks: {told}")
    lists = isinstance(table, Sequence) and all(isinstance(ids, Sequence) for ids in table)
    told = f"the table of {name!r} has no list for each layer: give its session.block_ids_per_layer"
    require(lists and len(table) == kv.num_layers, told)
    for block_id in table[layer_idx]:
        if block_id // kv.num_blocks != layer_idx or not _in_use(kv, block_id):
            told = f"which is not in use in layer {layer_idx}: give a live session's block_ids_per_layer"
            raise BlockError(f"the table of {name!r} shows block {block_id}, {told}")
    return tuple(kv.block_index(block_id) for block_id in table[layer_idx])


def _in_use(kv: KVBlockManager, block_id: int) -> bool:
    try:
        kv.info(block_id)
    except BlockError:
        return False
    return True


def _state(kv: KVBlockManager, layer_idx: int, block_index: int, names: tuple[str, ...]) -> BlockState:
    block_id = layer_idx * kv.num_blocks + block_index
    if not _in_use(kv, block_id):
        return BlockState(block_index)
    info = kv.info(block_id)
    if len(names) > info.owners:
        shown = f"the tables of {', '.join(names)} show it: give each live session once"
        raise BlockError(f"block {block_id} counts {counted(info.owners, 'owner')}, and {shown}")
    return BlockState(block_index, info.start, info.length, info.owners, info.cached, names)
