"""lesson: 061
verdict: wrong
cause: half-written
shows: cpu
The kernel is written for one program per session and head, and takes the head from program_id(1). The wrapper launches one program per session, so that program_id(1) is always 0.
Only head 0 of K and V is written.
"""
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _append_head(
    k_cache, v_cache, key, value, block_idx, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    block = tl.load(block_idx + b).to(tl.int64)
    d = tl.arange(0, LANES)
    inside = d < D
    source = h * D + d
    target = ((block * H + h) * S + pos) * D + d
    tl.store(k_cache + target, tl.load(key + b * key_stride + source, mask=inside), mask=inside)
    tl.store(v_cache + target, tl.load(value + b * value_stride + source, mask=inside), mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]."""
    N, H, S, D = k_cache_layer.shape
    _append_head[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, S=S, LANES=triton.next_power_of_2(D),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions, keys, values):
        for i in range(self.kv.num_layers):
            self.append_token_batch(i, [s.block_ids_per_layer[i] for s in sessions], keys[i], values[i])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, copies = [], [], []
        for row, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if not info or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, len(block_ids) * self.kv.block_size))
                info = self.kv.info(block_ids[-1])
            if info.owners == 1:
                rows.append(row)
                infos.append(info)
            else:
                copies.append(row)

        if rows:
            path = self.choose(len(rows), len(key_new), {info.length for info in infos})
            path(layer_idx, rows, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for row in copies:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def choose(self, n, batch, positions):
        if self.triton and n == batch and len(positions) == 1 and n >= self.full_min_batch:
            return self.by_full_batch_kernel
        if self.triton and n >= self.min_batch:
            return self.by_generic_kernel
        return self.by_stores

    def by_full_batch_kernel(self, layer_idx, rows, infos, key_new, value_new):
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        k, v = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        kv_append_triton_full_batch(k, v, key_new, value_new, blocks, infos[0].length)

    def by_generic_kernel(self, layer_idx, rows, infos, key_new, value_new):
        columns = [rows, [info.block_index for info in infos], [info.length for info in infos]]
        k, v = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        kv_append_triton(k, v, key_new, value_new, *index_tensor(columns, self.kv.device))

    def by_stores(self, layer_idx, rows, infos, key_new, value_new):
        device = self.kv.device
        blocks = index_tensor([info.block_index for info in infos], device)
        positions = [info.length for info in infos]
        slots = positions[0] if len(set(positions)) == 1 else index_tensor(positions, device)
        if len(rows) < len(key_new):
            picked = index_tensor(rows, device)
            key_new, value_new = key_new.index_select(0, picked), value_new.index_select(0, picked)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
