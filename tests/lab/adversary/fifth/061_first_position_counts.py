"""lesson: 061
verdict: wrong
cause: wrong-slot
shows: cpu
The gate of the full-batch kernel asks whether the batch is whole and large enough, but not whether all positions are equal.
A whole batch of mixed lengths goes through it, and every token is written to the slot of the first session, in its own right block.
"""
import torch
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache, v_cache, k_new, v_new, blocks, pos, k_stride, v_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks + b).to(tl.int64)
    lane = tl.arange(0, BLOCK_HD)
    mask = lane < H * D
    head, dim = lane // D, lane % D
    to = ((block * H + head) * BLOCK_SIZE + pos) * D + dim
    k = tl.load(k_new + b * k_stride + lane, mask=mask)
    v = tl.load(v_new + b * v_stride + lane, mask=mask)
    tl.store(k_cache + to, k, mask=mask)
    tl.store(v_cache + to, v, mask=mask)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, S, D = k_cache_layer.shape
    grid = (len(block_idx),)
    _kv_append_full_batch_kernel[grid](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, BLOCK_SIZE=S, BLOCK_HD=triton.next_power_of_2(H * D),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.use_triton = triton_runs_on(kv.device)
        self.min_generic = config.triton_kv_append_min_batch
        self.min_full = config.triton_kv_append_full_batch_min_batch
        if self.min_full is None:
            self.min_full = self.min_generic

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            lists = [s.block_ids_per_layer[layer] for s in sessions]
            self.append_token_batch(layer, lists, keys[layer], values[layer])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, infos, slow = [], [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                fast.append(b)
                infos.append(info)
        if fast:
            self.write(layer_idx, fast, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        kv, n = self.kv, len(batch_idx)
        k_layer, v_layer = kv.k_layers[layer_idx], kv.v_layers[layer_idx]
        blocks = index_tensor([info.block_index for info in infos], kv.device)
        whole = n == key_new.shape[0]

        if self.use_triton and whole and n >= self.min_full:
            pos = infos[0].length
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, pos)
        elif self.use_triton and n >= self.min_generic:
            rows, slots = index_tensor([batch_idx, [info.length for info in infos]], kv.device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, rows, blocks, slots)
        else:
            slots = [info.length for info in infos]
            same = len(set(slots)) == 1
            slots = slots[0] if same else index_tensor(slots, kv.device)
            if not whole:
                rows = index_tensor(batch_idx, kv.device)
                key_new, value_new = key_new.index_select(0, rows), value_new.index_select(0, rows)
            k_layer[blocks, :, slots] = key_new
            v_layer[blocks, :, slots] = value_new
