# right
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache,
    v_cache,
    k_new,
    v_new,
    blocks,
    pos,
    k_stride,
    v_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    BS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    live = lane < H * D
    head = lane // D
    dim = lane % D
    block = tl.load(blocks + row).to(tl.int64)
    to = block * (H * BS * D) + head * (BS * D) + pos * D + dim
    k = tl.load(k_new + row * k_stride + lane, mask=live)
    v = tl.load(v_new + row * v_stride + lane, mask=live)
    tl.store(k_cache + to, k, mask=live)
    tl.store(v_cache + to, v, mask=live)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, block_size, D = k_cache_layer.shape
    tile = min(256, triton.next_power_of_2(H * D))
    grid = (len(block_idx), triton.cdiv(H * D, tile))
    _kv_append_full_batch_kernel[grid](
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
        BS=block_size,
        TILE=tile,
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        never = float("inf")
        generic = config.triton_kv_append_min_batch
        whole = config.triton_kv_append_full_batch_min_batch
        on = triton_runs_on(kv.device)
        self.generic_from = generic if on else never
        self.whole_from = (generic if whole is None else whole) if on else never

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = ([], [], [])
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

    def way(self, n, size, positions):
        if n == size and n >= self.whole_from and (len(set(positions)) == 1):
            return "whole"
        return "generic" if n >= self.generic_from else "stores"

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device = self.kv.device
        caches = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        positions = [info.length for info in infos]
        blk_t = index_tensor([info.block_index for info in infos], device)
        way = self.way(len(batch_idx), len(key_new), positions)
        if way == "whole":
            kv_append_triton_full_batch(*caches, key_new, value_new, blk_t, positions[0])
        elif way == "generic":
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kv_append_triton(*caches, key_new, value_new, idx_t, blk_t, pos_t)
        else:
            if len(batch_idx) < len(key_new):
                idx_t = index_tensor(batch_idx, device)
                key_new, value_new = (key_new.index_select(0, idx_t), value_new.index_select(0, idx_t))
            slots = positions[0] if len(set(positions)) == 1 else index_tensor(positions, device)
            caches[0][blk_t, :, slots] = key_new
            caches[1][blk_t, :, slots] = value_new
