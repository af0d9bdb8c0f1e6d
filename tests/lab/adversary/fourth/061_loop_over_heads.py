"""lesson: 061
verdict: right
cause: right
shows: both
The kernel is told all strides of the caches and loops over the heads inside one program; the launch is prepared once, in a closure.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


@triton.jit(do_not_specialize=["pos"])
def _append_rows(
    k_cache, v_cache, key, value, block_idx, pos,
    block_stride, head_stride, slot_stride, key_b, key_h, value_b, value_h,
    HEADS: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, LANES)
    block = tl.load(block_idx + b).to(tl.int64)
    there = block * block_stride + pos * slot_stride + d
    for h in range(HEADS):
        k = tl.load(key + b * key_b + h * key_h + d, mask=d < DIM)
        tl.store(k_cache + there + h * head_stride, k, mask=d < DIM)
        v = tl.load(value + b * value_b + h * value_h + d, mask=d < DIM)
        tl.store(v_cache + there + h * head_stride, v, mask=d < DIM)


def kv_append_triton_full_batch(
    k_cache_layer: Tensor, v_cache_layer: Tensor, key_new: Tensor, value_new: Tensor, block_idx: Tensor, pos: int
) -> None:
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]."""
    heads, dim = key_new.shape[1:]
    _append_rows[(block_idx.size(0),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        *k_cache_layer.stride()[:3], *key_new.stride()[:2], *value_new.stride()[:2],
        HEADS=heads, DIM=dim, LANES=triton.next_power_of_2(dim),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        generic = config.triton_kv_append_min_batch
        special = config.triton_kv_append_full_batch_min_batch
        if special is None:
            special = generic
        runs = triton_runs_on(kv.device)
        self.use_special = lambda n: runs and n >= special
        self.use_generic = lambda n: runs and n >= generic

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        L = self.kv.num_layers
        for layer_idx, key_new, value_new in zip(range(L), keys, values, strict=True):
            self.layer(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], key_new, value_new)

    def layer(self, layer_idx: int, tables: list[list[int]], key_new: Tensor, value_new: Tensor) -> None:
        kv, S = self.kv, self.kv.block_size
        for table in tables:
            end = kv.info(table[-1]) if table else None
            if end is None or end.length == S:
                table += [kv.allocate_block(layer_idx, end.start + S if end else 0)]
        ends = [kv.info(table[-1]) for table in tables]
        mine = [(b, end.block_index, end.length) for b, end in enumerate(ends) if end.owners == 1]
        copies = [b for b, end in enumerate(ends) if end.owners > 1]
        if mine:
            self.write(layer_idx, *map(list, zip(*mine)), key_new, value_new)
        for b, _, length in mine:
            ends[b].length = length + 1
        for b in copies:
            kv.append_token(layer_idx, tables[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, rows: list[int], blocks: list[int], slots: list[int], key_new: Tensor, value_new: Tensor
    ) -> None:
        k_layer, v_layer, device = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx], self.kv.device
        n, whole = len(rows), len(rows) == len(key_new)
        level = slots == slots[:1] * n
        blk = index_tensor(blocks, device)
        if whole and level and self.use_special(n):
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk, slots[0])
        elif self.use_generic(n):
            idx, pos = index_tensor([rows, slots], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx, blk, pos)
        else:
            if not whole:
                idx = index_tensor(rows, device)
                key_new, value_new = torch.index_select(key_new, 0, idx), torch.index_select(value_new, 0, idx)
            at = slots[0] if level else index_tensor(slots, device)
            k_layer[blk, :, at] = key_new
            v_layer[blk, :, at] = value_new
