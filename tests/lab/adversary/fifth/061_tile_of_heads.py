"""lesson: 061
verdict: right
cause: right
shows: cpu
The kernel has a two-dimensional tile, heads by dimensions, each padded to a power of two and masked, where the course has one row of lanes. Gates as the lesson asks.
"""
import torch
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos", "key_stride", "value_stride"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_H: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + row).to(tl.int64)
    h = tl.arange(0, TILE_H)[:, None]
    d = tl.arange(0, TILE_D)[None, :]
    inside = (h < H) & (d < D)
    source = h * D + d
    target = block * (H * BLOCK_SIZE * D) + h * (BLOCK_SIZE * D) + pos * D + d
    key = tl.load(key_ptr + row * key_stride + source, mask=inside)
    value = tl.load(value_ptr + row * value_stride + source, mask=inside)
    tl.store(k_cache_ptr + target, key, mask=inside)
    tl.store(v_cache_ptr + target, value, mask=inside)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    _, H, block_size, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, BLOCK_SIZE=block_size,
        TILE_H=triton.next_power_of_2(H), TILE_D=triton.next_power_of_2(D),
    )  # fmt: skip


class MyKVAppend:
    """Put the new token's K and V into the cache."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.has_triton = triton_runs_on(kv.device)
        self.at_least = config.triton_kv_append_min_batch
        self.at_least_full = config.triton_kv_append_full_batch_min_batch
        if self.at_least_full is None:
            self.at_least_full = self.at_least

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def last_block(self, layer_idx, block_ids):
        """The block that the next token goes to, new if it has to be."""
        if block_ids:
            info = self.kv.info(block_ids[-1])
            if info.length < self.kv.block_size:
                return info
            start = info.start + info.length
        else:
            start = 0
        block_ids.append(self.kv.allocate_block(layer_idx, start))
        return self.kv.info(block_ids[-1])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        last = [self.last_block(layer_idx, block_ids) for block_ids in block_ids_list]
        alone = [b for b, info in enumerate(last) if info.owners == 1]
        shared = [b for b, info in enumerate(last) if info.owners > 1]
        if alone:
            self.write(layer_idx, alone, [last[b] for b in alone], key_new, value_new)
            for b in alone:
                last[b].length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, rows, infos, key_new, value_new):
        n, device = len(rows), self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        slots = [info.length for info in infos]
        one_slot = slots == [slots[0]] * n
        whole = n == key_new.shape[0]
        blk_t = index_tensor([info.block_index for info in infos], device)

        if self.has_triton and whole and one_slot and n >= self.at_least_full:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, slots[0])
        elif self.has_triton and n >= self.at_least:
            idx_t, pos_t = index_tensor([rows, slots], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
        else:
            if not whole:
                idx_t = index_tensor(rows, device)
                key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
            where = slots[0] if one_slot else index_tensor(slots, device)
            k_layer[blk_t, :, where] = key_new
            v_layer[blk_t, :, where] = value_new
