"""A small cache with one table for all layers, and what to write into it."""

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
    blocks = torch.tensor(list(table), dtype=torch.int64)
    held = torch.stack([kv.keys[:, blocks], kv.values[:, blocks]])  # [2, L, blocks, H, block_size, D]
    return held.transpose(3, 4).flatten(2, 3)[:, :, : table.num_tokens].cpu()


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
