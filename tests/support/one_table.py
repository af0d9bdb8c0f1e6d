"""A small cache with one table for all layers, what to write into it, and ways to break its books."""

import torch

from rosecourse.kv.blocks import KVBlockManager

L, H, D = 2, 2, 3


def make_kv(block_size: int = 4, num_blocks: int = 8, device: str = "cpu", head_dim: int = D) -> KVBlockManager:
    shape = {"num_layers": L, "num_kv_heads": H, "head_dim": head_dim, "block_size": block_size}
    kv = KVBlockManager(**shape, num_blocks=num_blocks, dtype=torch.float32, device=torch.device(device))
    for cache in (kv.keys, kv.values):
        cache.fill_(float("nan"))
    return kv


def tokens(count: int, tag: float) -> torch.Tensor:
    """K and V [2, L, count, H, D] with a value of its own at every place."""
    return tag * 1000 + torch.arange(2 * L * count * H * D, dtype=torch.float32).view(2, L, count, H, D)


def write(kv: KVBlockManager, table: list[int], first: int, kv_new: torch.Tensor) -> None:
    """Write K and V of the positions from `first` on, as prefill does."""
    positions = torch.arange(first, first + kv_new.shape[2])
    blocks = torch.tensor(table, dtype=torch.int64)[positions // kv.block_size]
    for layer in range(L):
        kv.write_tokens(layer, blocks, positions % kv.block_size, kv_new[0, layer], kv_new[1, layer])


def read(kv: KVBlockManager, table) -> torch.Tensor:
    """[2, L, length, H, D], position p from block table[p // block_size], slot p % block_size."""
    out = torch.empty(2, L, table.num_tokens, H, kv.keys.shape[-1])
    for p in range(table.num_tokens):
        block, slot = table[p // kv.block_size], p % kv.block_size
        out[:, :, p] = torch.stack([kv.keys[:, block, :, slot], kv.values[:, block, :, slot]])
    return out


def copy(kv: KVBlockManager, copies) -> None:
    """What `place` asks for, one number after another."""
    for source, destination in copies:
        for cache in (kv.keys, kv.values):
            cache[:, destination] = cache[:, source].clone()


def append(kv: KVBlockManager, tables: list, dense: list[torch.Tensor], kv_new: torch.Tensor) -> None:
    """One more token for each table, kv_new [2, L, B, H, D]; `dense`, if there is any, gets it too."""
    copy(kv, kv.place(tables))
    for b, table in enumerate(tables):
        write(kv, table, table.num_tokens, kv_new[:, :, b : b + 1])
        table.num_tokens += 1
    for b, held in enumerate(dense):
        dense[b] = torch.cat([held, kv_new[:, :, b : b + 1]], dim=2)


def broken_pools():
    """Ways to break a pool: its table holds two blocks, and another block is kept and has no owner."""

    def owner_dropped(kv, table, kept):
        kv.info(table[0]).owners -= 1

    def owner_added(kv, table, kept):
        kv.info(table[1]).owners += 1

    def leaked(kv, table, kept):
        table.pop()

    def freed_and_held(kv, table, kept):
        kv._free_block_indices.append(table[0])

    def free_twice(kv, table, kept):
        kv._free_block_indices.append(kv._free_block_indices[0])

    def lost(kv, table, kept):
        kv._free_block_indices.pop()

    def of_another_pool(kv, table, kept):
        kv._free_block_indices[0] = kv.num_blocks

    def twice_in_a_table(kv, table, kept):
        table[1] = table[0]

    def replaced(kv, table, kept):
        table[1] = kv._free_block_indices[0]

    def too_many_tokens(kv, table, kept):
        table.num_tokens = 9

    def too_few_tokens(kv, table, kept):
        table.num_tokens = 3

    def described_and_free(kv, table, kept):
        kv._block_infos[kv._free_block_indices[0]] = type(kv.info(table[0]))(owners=0)

    def cached_unknown(kv, table, kept):
        kv.info(table[0]).cached = True

    def known_and_not_cached(kv, table, kept):
        kv.info(kept).cached = False

    def idle_and_held(kv, table, kept):
        kv._idle_blocks[table[0]] = None

    def not_idle(kv, table, kept):
        kv._idle_blocks.clear()

    return [value for value in locals().values() if callable(value)]
