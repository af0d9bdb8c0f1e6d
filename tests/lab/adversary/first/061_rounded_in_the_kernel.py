"""lesson: 061
verdict: wrong
cause: values-changed
shows: cpu
Converts K and V to half precision on their way through the kernel, because the article's cache is fp16. A float32
cache gets rounded values.
"""

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit
def copy_row(cache, new, target, inside):
    row = tl.load(new, mask=inside, other=0.0).to(tl.float16)
    tl.store(cache + target, row, mask=inside)


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache, v_cache, key, value, block_idx, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    hd = tl.arange(0, LANES)
    row = tl.load(block_idx + b).to(tl.int64) * H + hd // D
    target = (row * SIZE + pos) * D + hd % D
    copy_row(k_cache, key + b * key_stride + hd, target, hd < H * D)
    copy_row(v_cache, value + b * value_stride + hd, target, hd < H * D)


def kv_append_triton_full_batch(k_cache, v_cache, key_new, value_new, block_idx, pos):
    _, H, size, D = k_cache.shape
    _kv_append_full_batch_kernel[(len(block_idx),)](
        k_cache, v_cache, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0), H, D, size, triton.next_power_of_2(H * D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        on = triton_runs_on(kv.device)
        few = config.triton_kv_append_min_batch
        self.generic_from = few if on else float("inf")
        self.whole_from = (config.triton_kv_append_full_batch_min_batch or few) if on else float("inf")

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_token_batch(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def tail(self, layer, ids):
        last = self.kv.info(ids[-1]) if ids else None
        if last and last.length < self.kv.block_size:
            return last
        ids.append(self.kv.allocate_block(layer, len(ids) * self.kv.block_size))
        return self.kv.info(ids[-1])

    def append_token_batch(self, layer, tables, k, v):
        tails = [self.tail(layer, ids) for ids in tables]
        rows = [b for b, t in enumerate(tails) if t.owners == 1]
        if rows:
            self.write(layer, rows, [tails[b] for b in rows], k, v)
        for b in rows:
            tails[b].length += 1
        for b in sorted({*range(len(tables))} - {*rows}):
            self.kv.append_token(layer, tables[b], k[b], v[b])

    def write(self, layer, rows, infos, k, v):
        caches, dev = (self.kv.k_layers[layer], self.kv.v_layers[layer]), self.kv.device
        at, whole = [i.length for i in infos], len(rows) == len(k)
        blk = index_tensor([i.block_index for i in infos], dev)
        level = len({*at}) == 1
        if whole and level and len(rows) >= self.whole_from:
            kv_append_triton_full_batch(*caches, k, v, blk, at[0])
        elif len(rows) >= self.generic_from:
            idx, pos = index_tensor([rows, at], dev)
            kv_append_triton(*caches, k, v, idx, blk, pos)
        else:
            if not whole:
                idx = index_tensor(rows, dev)
                k, v = k.index_select(0, idx), v.index_select(0, idx)
            at = at[0] if level else index_tensor(at, dev)
            for cache, new in zip(caches, (k, v), strict=True):
                cache[blk, :, at] = new
