"""lesson: 061
verdict: wrong
cause: k-v-swapped
shows: both
The call of the generic kernel has `value_new` before `key_new`: mixed lengths get K and V exchanged, whole batches are right.
"""

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _full_batch(
    k_cache, v_cache, key, value, block_idx, pos, k_stride, v_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    base = tl.load(block_idx + b).to(tl.int64) * H * BLOCK_SIZE * D
    target = base + (hd // D) * BLOCK_SIZE * D + pos * D + hd % D
    k = tl.load(key + b * k_stride + hd, mask=inside)
    v = tl.load(value + b * v_stride + hd, mask=inside)
    tl.store(k_cache + target, k, mask=inside)
    tl.store(v_cache + target, v, mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    B, H, D = key_new.shape
    _full_batch[(B,)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, key_new.stride(0), value_new.stride(0),
        H=H, D=D, BLOCK_SIZE=k_cache_layer.shape[2], BLOCK_HD=triton.next_power_of_2(H * D),
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

    def block_with_room(self, layer_idx, block_ids):
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is None or info.length == self.kv.block_size:
            block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
            info = self.kv.info(block_ids[-1])
        return info

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.block_with_room(layer_idx, block_ids) for block_ids in block_ids_list]
        fast = [(b, info) for b, info in enumerate(infos) if info.owners == 1]
        slow = [b for b, info in enumerate(infos) if info.owners > 1]
        if fast:
            self.write(layer_idx, [b for b, _ in fast], [info for _, info in fast], key_new, value_new)
        for _, info in fast:
            info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device, n = self.kv.device, len(batch_idx)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        positions = [info.length for info in infos]
        whole, constant = n == len(key_new), len(set(positions)) == 1
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.triton and whole and constant and n >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, positions[0])
            return
        if self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, value_new, key_new, idx_t, blk_t, pos_t)
            return
        if not whole:
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        slots = positions[0] if constant else index_tensor(positions, device)
        k_layer[blk_t, :, slots] = key_new
        v_layer[blk_t, :, slots] = value_new
