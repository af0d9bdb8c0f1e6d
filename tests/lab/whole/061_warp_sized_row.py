# wrong, which a CPU can show
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor

LANES = tl.constexpr(256)


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
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    lane = tl.arange(0, LANES)
    inside = lane < H * D
    target = ((block * H + lane // D) * BLOCK_SIZE + pos) * D + lane % D
    k = tl.load(key_ptr + b * key_stride + lane, mask=inside)
    v = tl.load(value_ptr + b * value_stride + lane, mask=inside)
    tl.store(k_cache_ptr + target, k, mask=inside)
    tl.store(v_cache_ptr + target, v, mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, block_size, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[len(block_idx),](
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
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_idx, fast_infos, slow_idx = ([], [], [])
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_idx.append(b)
            else:
                fast_idx.append(b)
                fast_infos.append(info)
        if fast_idx:
            self.write(layer_idx, fast_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device, n = (self.kv.device, len(batch_idx))
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        full = n == len(key_new)
        positions = [info.length for info in infos]
        const = len(set(positions)) == 1
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.triton and n >= self.full_min_batch and full and const:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, positions[0])
        elif self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
        else:
            if not full:
                idx_t = index_tensor(batch_idx, device)
                key_new, value_new = (key_new.index_select(0, idx_t), value_new.index_select(0, idx_t))
            slots = positions[0] if const else index_tensor(positions, device)
            k_layer[blk_t, :, slots] = key_new
            v_layer[blk_t, :, slots] = value_new
