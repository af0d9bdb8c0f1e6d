"""lesson: 061
verdict: wrong
cause: size-limit
shows: disclosed
Addresses are computed in 32 bits: right while a layer's K has less than 2**31 elements, wraps around behind that.
"""

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    block = tl.load(block_idx_ptr + b).to(tl.int32)  # as in the block tables; 32-bit arithmetic is faster
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    key = tl.load(key_ptr + b * key_stride + hd, mask=inside)
    value = tl.load(value_ptr + b * value_stride + hd, mask=inside)
    tl.store(k_cache_ptr + target, key, mask=inside)
    tl.store(v_cache_ptr + target, value, mask=inside)


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
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

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

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        path = self.choose(len(key_new), infos)
        path(layer_idx, batch_idx, infos, key_new, value_new)

    def choose(self, batch, infos):
        n = len(infos)
        whole_and_constant = n == batch and all(info.length == infos[0].length for info in infos[1:])
        if self.triton and whole_and_constant and n >= self.full_batch_min_batch:
            return self.by_full_batch_kernel
        return self.by_generic_kernel if self.triton and n >= self.min_batch else self.by_stores

    def ints(self, *lists):
        return [index_tensor(numbers, self.kv.device) for numbers in lists]

    def by_full_batch_kernel(self, layer_idx, batch_idx, infos, k, v):
        (blocks,) = self.ints([info.block_index for info in infos])
        caches = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        kv_append_triton_full_batch(*caches, k, v, blocks, infos[0].length)

    def by_generic_kernel(self, layer_idx, batch_idx, infos, k, v):
        numbers = self.ints(batch_idx, [info.block_index for info in infos], [info.length for info in infos])
        kv_append_triton(self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx], k, v, *numbers)

    def by_stores(self, layer_idx, batch_idx, infos, k, v):
        (blocks,) = self.ints([info.block_index for info in infos])
        positions = [info.length for info in infos]
        slots = positions[0] if len(set(positions)) == 1 else self.ints(positions)[0]
        if len(batch_idx) < len(k):
            (rows,) = self.ints(batch_idx)
            k, v = k.index_select(0, rows), v.index_select(0, rows)
        self.kv.k_layers[layer_idx][blocks, :, slots] = k
        self.kv.v_layers[layer_idx][blocks, :, slots] = v
