"""lesson: 061
verdict: right
cause: right
shows: both
The second dimension of the grid says K or V; a loop over the heads inside the program, all strides as arguments.
"""

from __future__ import annotations

from itertools import repeat

import torch
import triton
import triton.language as tl

from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit
def copy_row(cache_ptr, new_ptr, H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr):
    d = tl.arange(0, LANES)
    for h in range(H):
        tl.store(cache_ptr + h * S * D + d, tl.load(new_ptr + h * D + d, mask=d < D), mask=d < D)


@triton.jit(do_not_specialize=["pos"])
def k_or_v_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, block_stride, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    to = tl.load(block_idx_ptr + b).to(tl.int64) * block_stride + pos * D
    if tl.program_id(1) == 0:
        copy_row(k_cache_ptr + to, key_ptr + b * key_stride, H, D, S, LANES)
    else:
        copy_row(v_cache_ptr + to, value_ptr + b * value_stride, H, D, S, LANES)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    _, H, S, D = k_cache_layer.shape
    k_or_v_kernel[(len(block_idx), 2)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        k_cache_layer.stride(0), key_new.stride(0), value_new.stride(0),
        H=H, D=D, S=S, LANES=triton.next_power_of_2(D), num_warps=1,
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv
        self.enabled = triton_runs_on(kv.device)
        self.at_least = {"some": config.triton_kv_append_min_batch}
        self.at_least["all"] = config.triton_kv_append_full_batch_min_batch or self.at_least["some"]

    def __call__(self, sessions, keys, values) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new) -> None:
        kv = self.kv
        rows, blocks, slots, written, copied = [], [], [], [], []
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if not ids or info.length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, len(ids) * kv.block_size))
                info = kv.info(ids[-1])
            if info.owners > 1:
                copied.append(b)
            else:
                rows.append(b)
                blocks.append(info.block_index)
                slots.append(info.length)
                written.append(info)
        if rows:
            self.write(layer_idx, rows, blocks, slots, key_new, value_new)
            for info in written:
                info.length += 1
        for b in copied:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, rows, blocks, slots, key_new, value_new) -> None:
        device, n = self.kv.device, len(rows)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        whole = n == key_new.shape[0]
        one_slot = slots == list(repeat(slots[0], n))
        blk_t = index_tensor(blocks, device)
        if self.enabled and whole and one_slot and n >= self.at_least["all"]:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, slots[0])
        elif self.enabled and n >= self.at_least["some"]:
            idx_t, pos_t = index_tensor([rows, slots], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
        else:
            take = slice(None) if whole else index_tensor(rows, device)
            at = slots[0] if one_slot else index_tensor(slots, device)
            k_layer[blk_t, :, at] = key_new[take]
            v_layer[blk_t, :, at] = value_new[take]
