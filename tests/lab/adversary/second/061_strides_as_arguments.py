"""lesson: 061
verdict: right
cause: right
shows: both
Pieces of 128 lanes in a grid (B, pieces), with a 2D store in the block: all strides of the cache are taken from its tensor.
"""

from dataclasses import dataclass
from itertools import repeat

import torch
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.lessons.l035_blocks import KVBlockInfo
from rosecourse.kv.buffers import index_tensor

PIECE = 128


@triton.jit
def _copy_piece(to_ptr, from_ptr, hd, inside, head_stride, slot_start, D: tl.constexpr):
    number = tl.load(from_ptr + hd, mask=inside)
    tl.store(to_ptr + (hd // D) * head_stride + slot_start + hd % D, number, mask=inside)


@triton.jit(
    do_not_specialize=["slot_start", "block_stride", "head_stride", "key_stride", "value_stride"],
    do_not_specialize_on_alignment=["key", "value", "blocks"],
)
def _full_batch_kernel(
    k_cache, v_cache, key, value, blocks, slot_start, block_stride, head_stride, key_stride, value_stride,
    D: tl.constexpr, HD: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    hd = tl.program_id(1) * N + tl.arange(0, N)
    start = tl.load(blocks + b).to(tl.int64) * block_stride
    inside = hd < HD
    _copy_piece(k_cache + start, key + b * key_stride, hd, inside, head_stride, slot_start, D)
    _copy_piece(v_cache + start, value + b * value_stride, hd, inside, head_stride, slot_start, D)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    """Row b goes to slot pos of block block_idx[b]. The caches have the same strides, and D lies together."""
    block_stride, head_stride, slot_stride, _ = k_cache_layer.stride()
    B, H, D = key_new.shape
    _full_batch_kernel[B, triton.cdiv(H * D, PIECE)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos * slot_stride, block_stride, head_stride,
        key_new.stride(0), value_new.stride(0), D=D, HD=H * D, N=PIECE,
    )  # fmt: skip


@dataclass(slots=True)
class Write:
    row: int
    info: KVBlockInfo


class MyKVAppend:
    def __init__(self, model, kv, config) -> None:
        self.kv = kv
        self.on = triton_runs_on(kv.device)
        self.least = config.triton_kv_append_min_batch
        self.least_full = config.triton_kv_append_full_batch_min_batch or self.least

    def __call__(self, sessions, keys, values) -> None:
        for layer in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer] for session in sessions]
            self.append_token_batch(layer, lists, keys[layer], values[layer])

    def append_token_batch(self, layer, lists, key_new, value_new) -> None:
        for ids in lists:
            self._roll_over(layer, ids)
        writes = [Write(row, self.kv.info(ids[-1])) for row, ids in enumerate(lists)]
        slow = [write.row for write in writes if write.info.owners > 1]
        fast = [write for write in writes if write.info.owners == 1]
        if fast:
            self._write(layer, fast, key_new, value_new)
        for write in fast:
            write.info.length += 1
        for row in slow:
            self.kv.append_token(layer, lists[row], key_new[row], value_new[row])

    def _roll_over(self, layer, ids) -> None:
        info = self.kv.info(ids[-1]) if ids else None
        if info is None:
            ids.append(self.kv.allocate_block(layer))
        elif info.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, info.start + self.kv.block_size))

    def _write(self, layer, writes: list[Write], key_new, value_new) -> None:
        n, pos = len(writes), writes[0].info.length
        whole = n == key_new.size(0)
        equal = all(map(int.__eq__, (write.info.length for write in writes), repeat(pos)))
        kernel, to = self.on and n >= self.least, (self.kv.k_layers[layer], self.kv.v_layers[layer])
        blk_t = index_tensor([write.info.block_index for write in writes], self.kv.device)
        if self.on and whole and equal and n >= self.least_full:
            return kv_append_triton_full_batch(*to, key_new, value_new, blk_t, pos)
        if kernel:
            numbers = [write.row for write in writes], [write.info.length for write in writes]
            idx_t, pos_t = index_tensor(numbers, self.kv.device)
            return kv_append_triton(*to, key_new, value_new, idx_t, blk_t, pos_t)
        if not equal:
            pos = index_tensor([write.info.length for write in writes], self.kv.device)
        if not whole:
            idx_t = index_tensor([write.row for write in writes], self.kv.device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        for cache, new in zip(to, (key_new, value_new), strict=True):
            cache[blk_t, :, pos] = new
        return None
