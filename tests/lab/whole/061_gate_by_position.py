# wrong, which a CPU can show
from typing import Any

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache_ptr,
    v_cache_ptr,
    key_ptr,
    value_ptr,
    block_idx_ptr,
    pos,
    key_stride,
    value_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HD: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + hd, mask=inside), mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, block_size, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[block_idx.shape[0],](
        k_cache_layer,
        v_cache_layer,
        key_new,
        value_new,
        block_idx,
        pos,
        key_new.stride(0),
        value_new.stride(0),
        H=H,
        D=D,
        BLOCK_SIZE=block_size,
        BLOCK_HD=triton.next_power_of_2(H * D),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        batch: dict[int, Any] = {}
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners == 1:
                batch[b] = info
        if batch:
            self.write(layer_idx, batch, key_new, value_new)
        for info in batch.values():
            info.length += 1
        for b in (b for b in range(len(block_ids_list)) if b not in batch):
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch, key_new, value_new):
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        n = len(batch)
        pos = [info.length for info in batch.values()]
        blk_t = index_tensor([info.block_index for info in batch.values()], self.kv.device)
        const_pos = pos == [pos[0]] * n
        if self.triton and const_pos and (n >= self.full_batch_min_batch):
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos[0])
        elif self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([list(batch), pos], self.kv.device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
        else:
            if n < len(key_new):
                idx_t = index_tensor(list(batch), self.kv.device)
                key_new, value_new = (key_new.index_select(0, idx_t), value_new.index_select(0, idx_t))
            slots = pos[0] if const_pos else index_tensor(pos, self.kv.device)
            k_layer[blk_t, :, slots] = key_new
            v_layer[blk_t, :, slots] = value_new
