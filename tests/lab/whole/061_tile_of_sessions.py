# right
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor

ROWS = 4


@triton.jit(do_not_specialize=["pos", "batch"])
def _tile_of_sessions(
    k_cache_ptr,
    v_cache_ptr,
    key_ptr,
    value_ptr,
    block_idx_ptr,
    pos,
    batch,
    key_stride,
    value_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    block = tl.load(block_idx_ptr + b, mask=b < batch, other=0).to(tl.int64)
    hd = tl.arange(0, LANES)
    mask = (b < batch)[:, None] & (hd < H * D)[None, :]
    within = (hd // D * BLOCK_SIZE + pos) * D + hd % D
    target = block[:, None] * (H * BLOCK_SIZE * D) + within[None, :]
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b[:, None] * key_stride + hd[None, :], mask=mask), mask=mask)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b[:, None] * value_stride + hd[None, :], mask=mask), mask=mask)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    batch, (_, H, block_size, D) = (len(block_idx), k_cache_layer.shape)
    _tile_of_sessions[triton.cdiv(batch, ROWS),](
        k_cache_layer,
        v_cache_layer,
        key_new,
        value_new,
        block_idx,
        pos,
        batch,
        key_new.stride(0),
        value_new.stride(0),
        H=H,
        D=D,
        BLOCK_SIZE=block_size,
        LANES=triton.next_power_of_2(H * D),
        ROWS=ROWS,
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

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device, n = (self.kv.device, len(batch_idx))
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        full_fast = n == len(key_new)
        positions = [info.length for info in infos]
        pos0 = positions[0]
        const_pos = all((pos == pos0 for pos in positions))
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.triton and full_fast and const_pos and (n >= self.full_batch_min_batch):
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos0)
            return
        if self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
            return
        if not full_fast:
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = (key_new.index_select(0, idx_t), value_new.index_select(0, idx_t))
        slots = pos0 if const_pos else index_tensor(positions, device)
        k_layer[blk_t, :, slots] = key_new
        v_layer[blk_t, :, slots] = value_new
