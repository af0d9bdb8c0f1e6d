# right
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _heads_by_dims(
    k_cache,
    v_cache,
    key,
    value,
    blocks,
    pos,
    key_stride,
    value_stride,
    block_stride,
    head_stride,
    slot_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    H2: tl.constexpr,
    D2: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, H2)[:, None]
    d = tl.arange(0, D2)[None, :]
    mask = (h < H) & (d < D)
    origin = tl.load(blocks + b).to(tl.int64) * block_stride + pos * slot_stride
    there = origin + h * head_stride + d
    here = h * D + d
    tl.store(k_cache + there, tl.load(key + b * key_stride + here, mask=mask), mask=mask)
    tl.store(v_cache + there, tl.load(value + b * value_stride + here, mask=mask), mask=mask)


def kv_append_triton_full_batch(k_cache, v_cache, key_new, value_new, block_idx, pos):
    heads, dims = key_new.shape[1:]
    _heads_by_dims[len(block_idx),](
        k_cache,
        v_cache,
        key_new,
        value_new,
        block_idx,
        pos,
        key_new.stride(0),
        value_new.stride(0),
        *k_cache.stride()[:3],
        H=heads,
        D=dims,
        H2=triton.next_power_of_2(heads),
        D2=triton.next_power_of_2(dims),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        on = triton_runs_on(kv.device)
        few = config.triton_kv_append_min_batch
        self.generic_from = few if on else float("inf")
        self.whole_from = config.triton_kv_append_full_batch_min_batch or few if on else float("inf")

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
        caches, dev = ((self.kv.k_layers[layer], self.kv.v_layers[layer]), self.kv.device)
        at, whole = ([i.length for i in infos], len(rows) == len(k))
        blk = index_tensor([i.block_index for i in infos], dev)
        level = len({*at}) == 1
        if whole and level and (len(rows) >= self.whole_from):
            kv_append_triton_full_batch(*caches, k, v, blk, at[0])
        elif len(rows) >= self.generic_from:
            idx, pos = index_tensor([rows, at], dev)
            kv_append_triton(*caches, k, v, idx, blk, pos)
        else:
            if not whole:
                idx = index_tensor(rows, dev)
                k, v = (k.index_select(0, idx), v.index_select(0, idx))
            at = at[0] if level else index_tensor(at, dev)
            for cache, new in zip(caches, (k, v), strict=True):
                cache[blk, :, at] = new
