# right
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit
def put(cache, new, stride, b, to, lane, live):
    tl.store(cache + to, tl.load(new + b * stride + lane, mask=live), mask=live)


@triton.jit(do_not_specialize=["pos"])
def _k_or_v(kc, vc, k, v, blocks, pos, ks, vs, H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, N: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, N)
    to = ((tl.load(blocks + b).to(tl.int64) * H + lane // D) * S + pos) * D + lane % D
    if tl.program_id(1) == 0:
        put(kc, k, ks, b, to, lane, lane < H * D)
    else:
        put(vc, v, vs, b, to, lane, lane < H * D)


def kv_append_triton_full_batch(k_cache, v_cache, key_new, value_new, block_idx, pos):
    _, H, S, D = k_cache.shape
    strides = (key_new.stride(0), value_new.stride(0))
    lanes = triton.next_power_of_2(H * D)
    _k_or_v[len(block_idx), 2](k_cache, v_cache, key_new, value_new, block_idx, pos, *strides, H, D, S, lanes)


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
