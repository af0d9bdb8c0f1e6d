"""lesson: 061
verdict: wrong
cause: outside
shows: both
The store of V has no mask: where H * D is no power of two, the lanes behind it write into the next block, or behind the cache.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + row).to(tl.int64)
    lane = tl.arange(0, BLOCK_HD)
    head = lane // D
    dim = lane % D
    to = ((block * H + head) * BLOCK_SIZE + pos) * D + dim
    k = tl.load(key_ptr + row * key_stride + lane, mask=lane < H * D)
    v = tl.load(value_ptr + row * value_stride + lane, mask=lane < H * D, other=0.0)
    tl.store(k_cache_ptr + to, k, mask=lane < H * D)
    tl.store(v_cache_ptr + to, v)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    _, H, block_size, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, BLOCK_SIZE=block_size, BLOCK_HD=triton.next_power_of_2(H * D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.generic_from = config.triton_kv_append_min_batch
        self.full_from = config.triton_kv_append_full_batch_min_batch or self.generic_from

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx: Sequence[int], infos, key_new: Tensor, value_new: Tensor) -> None:
        caches = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        n, positions = len(infos), [info.length for info in infos]
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        whole, same = n == len(key_new), len(set(positions)) == 1
        if self.triton and whole and same and n >= self.full_from:
            kv_append_triton_full_batch(*caches, key_new, value_new, blocks, positions[0])
        elif self.triton and n >= self.generic_from:
            rows, slots = index_tensor([batch_idx, positions], self.kv.device)
            kv_append_triton(*caches, key_new, value_new, rows, blocks, slots)
        else:
            rows = slice(None) if whole else index_tensor(batch_idx, self.kv.device)
            slots = positions[0] if same else index_tensor(positions, self.kv.device)
            for cache, new in zip(caches, (key_new, value_new), strict=True):
                cache[blocks, :, slots] = new[rows]
