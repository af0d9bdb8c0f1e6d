# wrong, which a CPU can show
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


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
    BLOCK_HD: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    k = tl.load(key_ptr + b * key_stride + hd)
    v = tl.load(value_ptr + b * value_stride + hd)
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, k, mask=hd < H * D)
    tl.store(v_cache_ptr + target, v, mask=hd < H * D)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, heads, block_size, dim = k_cache_layer.shape
    lanes = max(1024, triton.next_power_of_2(heads * dim))
    _kv_append_full_batch_kernel[len(block_idx),](
        k_cache_layer,
        v_cache_layer,
        key_new,
        value_new,
        block_idx,
        pos,
        key_new.stride(0),
        value_new.stride(0),
        H=heads,
        D=dim,
        BLOCK_SIZE=block_size,
        BLOCK_HD=lanes,
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch
        self.has_triton = triton_runs_on(kv.device)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        simple, copies = ([], [])
        for b, ids in enumerate(block_ids_list):
            if not ids or self.kv.info(ids[-1]).length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, len(ids) * self.kv.block_size))
            target = copies if self.kv.info(ids[-1]).owners > 1 else simple
            target.append(b)
        infos = [self.kv.info(block_ids_list[b][-1]) for b in simple]
        if infos:
            self.write(layer_idx, simple, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device, n = (self.kv.device, len(batch_idx))
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        whole = n == len(key_new)
        positions = [info.length for info in infos]
        constant = set(positions) == {positions[0]}
        blocks = index_tensor([info.block_index for info in infos], device)
        if self.has_triton and whole and constant and (n >= self.full_batch_min_batch):
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, positions[0])
            return
        if self.has_triton and n >= self.min_batch:
            rows, slots = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, rows, blocks, slots)
            return
        if not whole:
            rows = index_tensor(batch_idx, device)
            key_new, value_new = (key_new.index_select(0, rows), value_new.index_select(0, rows))
        slots = positions[0] if constant else index_tensor(positions, device)
        k_layer[blocks, :, slots] = key_new
        v_layer[blocks, :, slots] = value_new
