"""lesson: 061
verdict: right
cause: right
shows: both
A grid of one program for each session and head; the part remembers its thresholds in a table of paths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


@triton.jit(do_not_specialize=["pos"])
def _store_head_kernel(
    k_cache, v_cache, k_new, v_new, blocks, pos, k_row, v_row, k_head, v_head,
    H: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, LANES)
    here = d < D
    block = tl.load(blocks + b).to(tl.int64)
    there = ((block * H + h) * SLOTS + pos) * D + d
    k = tl.load(k_new + b * k_row + h * k_head + d, mask=here)
    v = tl.load(v_new + b * v_row + h * v_head + d, mask=here)
    tl.store(k_cache + there, k, mask=here)
    tl.store(v_cache + there, v, mask=here)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    H, slots, D = k_cache_layer.shape[1:]
    _store_head_kernel[(block_idx.numel(), H)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0), key_new.stride(1), value_new.stride(1),
        H=H, D=D, SLOTS=slots, LANES=triton.next_power_of_2(D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        never = float("inf")
        generic, full = config.triton_kv_append_min_batch, config.triton_kv_append_full_batch_min_batch
        runs = triton_runs_on(kv.device)
        self.generic_from = generic if runs else never
        self.full_from = (generic if full is None else full) if runs else never

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor):
        last = [self.last_block(layer_idx, ids) for ids in block_ids_list]
        rows = [b for b, info in enumerate(last) if info.owners == 1]
        copies = [b for b, info in enumerate(last) if info.owners > 1]
        if rows:
            self.write(layer_idx, rows, [last[b] for b in rows], key_new, value_new)
        for b in rows:
            last[b].length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def last_block(self, layer_idx: int, ids: list[int]) -> KVBlockInfo:
        """The block that the token goes to; begun here if there is none, or if the last one is full."""
        info = self.kv.info(ids[-1]) if ids else None
        if info is None or info.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
            info = self.kv.info(ids[-1])
        return info

    def write(self, layer_idx: int, rows: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor):
        n, whole = len(rows), len(rows) == len(key_new)
        slots = [info.length for info in infos]
        constant = slots.count(slots[0]) == n
        caches = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        if whole and constant and n >= self.full_from:
            kv_append_triton_full_batch(*caches, key_new, value_new, blocks, slots[0])
        elif n >= self.generic_from:
            rows_t, slots_t = index_tensor([rows, slots], self.kv.device)
            kv_append_triton(*caches, key_new, value_new, rows_t, blocks, slots_t)
        else:
            where = slots[0] if constant else index_tensor(slots, self.kv.device)
            picked = None if whole else index_tensor(rows, self.kv.device)
            for cache, new in zip(caches, (key_new, value_new), strict=True):
                cache[blocks, :, where] = new if picked is None else new.index_select(0, picked)
