# wrong, which a CPU can show
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _rows_to_blocks(
    cache_ptr,
    new_ptr,
    block_idx_ptr,
    pos,
    row_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HD: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    numbers = tl.load(new_ptr + b * row_stride + hd, mask=inside)
    tl.store(cache_ptr + ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D, numbers, mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    for cache, new in ((k_cache_layer, key_new), (v_cache_layer, value_new)):
        _, H, block_size, D = cache.shape
        _rows_to_blocks[len(block_idx),](
            cache,
            new,
            block_idx,
            pos,
            new.stride(0),
            H=H,
            D=D,
            BLOCK_SIZE=block_size,
            BLOCK_HD=triton.next_power_of_2(H * D),
        )


class Gate:
    def __init__(self, kv, config):
        self.on = triton_runs_on(kv.device)
        self.generic = config.triton_kv_append_min_batch
        self.special = config.triton_kv_append_full_batch_min_batch or self.generic

    def special_opens(self, rows, batch, slots):
        return self.on and rows == batch and (rows >= self.special) and (len(set(slots)) == 1)

    def generic_opens(self, rows):
        return self.on and rows >= self.generic


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.gate = Gate(kv, config)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, rest = ([], [], [])
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(ids[-1])
            if info.owners > 1:
                rest.append(b)
                continue
            rows.append(b)
            infos.append(info)
        if rows:
            self.write(layer_idx, rows, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in rest:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, rows, infos, key_new, value_new):
        device = self.kv.device
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        slots = [info.length for info in infos]
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.gate.special_opens(len(rows), len(key_new), slots):
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, slots[0])
        elif self.gate.generic_opens(len(rows)):
            idx_t, pos_t = index_tensor([rows, slots], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
        else:
            if len(rows) < len(key_new):
                idx_t = index_tensor(rows, device)
                key_new, value_new = (key_new.index_select(0, idx_t), value_new.index_select(0, idx_t))
            pos = slots[0] if len(set(slots)) == 1 else index_tensor(slots, device)
            k_layer[blk_t, :, pos] = key_new
            v_layer[blk_t, :, pos] = value_new
