"""lesson: 061
verdict: wrong
cause: wrong-slot
shows: both
Takes the position for constant if the first and the last session agree: those between them go to the first one's slot.
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
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + hd, mask=inside), mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    _, H, block_size, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, BLOCK_SIZE=block_size, BLOCK_HD=triton.next_power_of_2(H * D),
    )  # fmt: skip


class MyKVAppend:
    """Full-batch kernel, generic kernel, indexed stores: in this order."""

    def __init__(self, model, kv, config):
        self.kv = kv
        on = triton_runs_on(kv.device)
        never = config.max_batch_size + 1
        self.generic_from = config.triton_kv_append_min_batch if on else never
        self.full_from = (config.triton_kv_append_full_batch_min_batch or self.generic_from) if on else never

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
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        n = len(infos)
        whole = n == key_new.shape[0]
        first, last = infos[0].length, infos[-1].length
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        if whole and first == last and n >= self.full_from:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, first)
            return
        slots = index_tensor([info.length for info in infos], self.kv.device)
        rows = index_tensor(batch_idx, self.kv.device)
        if n >= self.generic_from:
            kv_append_triton(k_layer, v_layer, key_new, value_new, rows, blocks, slots)
            return
        k_layer[blocks, :, slots] = key_new if whole else key_new[rows]
        v_layer[blocks, :, slots] = value_new if whole else value_new[rows]
