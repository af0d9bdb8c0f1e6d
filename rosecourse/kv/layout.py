"""What the engine asks of a cache, however the cache keeps its blocks.

A session's `Table` is opaque outside this folder and the parts of the decode step: engine and schedulers get one, hand
it back, and ask the cache about it. `blocks.KVBlockManager` is the layout of the articles, with blocks of their own for
each layer; a later lesson has one table for all layers. (The idea of opaque handles is mini-sglang's.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, device

# The blocks of one session, in the order of its tokens. It owns them until it is freed; what it is made of, only its
# cache knows.
Table = Any


class CacheLayout(Protocol):
    """K and V of all sessions in blocks, and who owns which block.

    A call that needs a block when none is free raises `KVCacheExhausted` and changes nothing.
    k_layers, v_layers: for each layer [num_blocks, num_kv_heads, block_size, head_dim].
    """

    num_layers: int
    num_blocks: int
    spare_blocks: int  # behind the others, of which no session can hold one
    block_size: int
    device: device
    k_layers: tuple[Tensor, ...]
    v_layers: tuple[Tensor, ...]
    forget: Callable[[Any], None]  # the prefix cache's: a block that it keeps is about to be reused

    def num_available(self) -> int:
        """Blocks that can be allocated, in every layer: free ones, and cached ones that can be evicted."""
        ...

    def blocks_of(self, table: Table) -> Sequence[Any]:
        """The blocks of a session as the prefix cache knows them, in their order; each can be hashed."""
        ...

    def keep(self, block: Any) -> None:
        """When its last owner leaves, this block stays as it is, until it is evicted."""
        ...

    def unkeep(self, block: Any) -> None:
        """A block that an owner still holds is no longer kept when it leaves."""
        ...

    def allocate(self, num_tokens: int, shared: Sequence[Any] = ()) -> Table:
        """Blocks for `num_tokens` tokens: those in `shared` first, which the prefix cache gives, then new ones."""
        ...

    def share(self, table: Table) -> Table:
        """A second owner of the same blocks, for a fork."""
        ...

    def free(self, table: Table) -> None:
        """An owner leaves. Works once; raises `BlockError` the second time."""
        ...

    def length(self, table: Table) -> int:
        """Tokens that the blocks of a session hold, or have been allocated for."""
        ...

    def can_append(self, tables: Sequence[Table]) -> bool:
        """Whether the pool has the blocks that one more token of each session needs."""
        ...

    def may_need_block(self, table: Table, num_tokens: int) -> bool:
        """Whether a session that grows to `num_tokens` tokens may need one more block, or a copy of its last one."""
        ...

    def block_indices(self, tables: Sequence[Table]) -> Tensor:
        """int64 [L, B, blocks] on the device: the physical block of each logical one, 0 past the last."""
        ...

    def write_tokens(self, layer_idx: int, block_indices: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write K and V of T tokens [T, H_kv, D] of one layer into blocks [T] and slots in them [T]."""
        ...

    def audit(self, holders: Iterable[Table], cached: Iterable[Any] = ()) -> None:
        """Raise `BlockError` unless every block is in exactly one state and has the owners that `holders` show."""
        ...
