# right
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
    kc_block,
    kc_head,
    kc_slot,
    vc_block,
    vc_head,
    vc_slot,
    key_row,
    key_head,
    value_row,
    value_head,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    n = tl.load(block_idx_ptr + b).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    m = d < D
    k = tl.load(key_ptr + b * key_row + h * key_head + d, mask=m)
    tl.store(k_cache_ptr + n * kc_block + h * kc_head + pos * kc_slot + d, k, mask=m)
    v = tl.load(value_ptr + b * value_row + h * value_head + d, mask=m)
    tl.store(v_cache_ptr + n * vc_block + h * vc_head + pos * vc_slot + d, v, mask=m)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, _, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[block_idx.numel(), H](
        k_cache_layer,
        v_cache_layer,
        key_new,
        value_new,
        block_idx,
        pos,
        *k_cache_layer.stride()[:3],
        *v_cache_layer.stride()[:3],
        *key_new.stride()[:2],
        *value_new.stride()[:2],
        D=D,
        BLOCK_D=triton.next_power_of_2(D),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.on = triton_runs_on(kv.device)
        self.least = config.triton_kv_append_min_batch
        self.least_full = config.triton_kv_append_full_batch_min_batch or self.least

    def __call__(self, sessions, keys, values):
        for l, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(l, [s.block_ids_per_layer[l] for s in sessions], k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        fast, slow = ({}, [])
        for b, ids in enumerate(block_ids_list):
            if not ids:
                ids.append(kv.allocate_block(layer_idx, 0))
            elif (old := kv.info(ids[-1])).length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, old.start + old.length))
            if (info := kv.info(ids[-1])).owners == 1:
                fast[b] = info
            else:
                slow.append(b)
        if fast:
            self.write(layer_idx, list(fast), list(fast.values()), key_new, value_new)
        for info in fast.values():
            info.length += 1
        for b in slow:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, rows, infos, key_new, value_new):
        kc, vc, to = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx], self.kv.device)
        n, slots = (len(rows), [i.length for i in infos])
        blocks = index_tensor([i.block_index for i in infos], to)
        one_slot, all_rows = (slots.count(slots[0]) == n, n == key_new.shape[0])
        if self.on and n >= self.least_full and all_rows and one_slot:
            return kv_append_triton_full_batch(kc, vc, key_new, value_new, blocks, slots[0])
        if self.on and n >= self.least:
            rows_t, slots_t = index_tensor([rows, slots], to)
            return kv_append_triton(kc, vc, key_new, value_new, rows_t, blocks, slots_t)
        where = (blocks, slice(None), slots[0] if one_slot else index_tensor(slots, to))
        pick = slice(None) if all_rows else index_tensor(rows, to)
        kc[where] = key_new[pick]
        vc[where] = value_new[pick]
