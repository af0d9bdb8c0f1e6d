"""lesson: 061
verdict: right
cause: right
shows: both
One program for each session and head, as the article has it; the gate is a function that names the way, and `match` takes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _one_head(
    k_cache, v_cache, k_new, v_new, blocks, pos, k_stride, v_stride,
    H: tl.constexpr, S: tl.constexpr, D: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, LANES)
    live = lane < D
    row = (tl.load(blocks + b).to(tl.int64) * H + h) * S + pos
    to = row * D + lane
    at = h * D + lane
    k = tl.load(k_new + b * k_stride + at, mask=live)
    v = tl.load(v_new + b * v_stride + at, mask=live)
    tl.store(k_cache + to, k, mask=live)
    tl.store(v_cache + to, v, mask=live)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, S, D = k_cache_layer.shape
    grid = (block_idx.numel(), H)
    strides = key_new.stride(0), value_new.stride(0)
    _one_head[grid](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, *strides,
        H=H, S=S, D=D, LANES=triton.next_power_of_2(D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        at_least = config.triton_kv_append_min_batch
        whole = config.triton_kv_append_full_batch_min_batch
        self.at_least = at_least if triton_runs_on(kv.device) else float("inf")
        self.whole_at_least = (at_least if whole is None else whole) if triton_runs_on(kv.device) else float("inf")

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            tables = [s.block_ids_per_layer[layer] for s in sessions]
            last = [self.with_room(layer, table) for table in tables]
            rows = [b for b, info in enumerate(last) if info.owners == 1]
            if rows:
                self.write(layer, rows, [last[b] for b in rows], keys[layer], values[layer])
            for b in rows:
                last[b].length += 1
            for b in sorted(set(range(len(tables))).difference(rows)):
                self.kv.append_token(layer, tables[b], keys[layer][b], values[layer][b])

    def with_room(self, layer, table):
        info = self.kv.info(table[-1]) if table else None
        if info is None or info.length >= self.kv.block_size:
            table.append(self.kv.allocate_block(layer, info.start + info.length if info else 0))
            info = self.kv.info(table[-1])
        return info

    def way(self, n, whole, level):
        if whole and level and n >= self.whole_at_least:
            return "full batch"
        return "generic" if n >= self.at_least else "stores"

    def write(self, layer, rows, infos, k, v):
        dev = self.kv.device
        caches = self.kv.k_layers[layer], self.kv.v_layers[layer]
        slots = [info.length for info in infos]
        whole, level = len(rows) == k.shape[0], len(set(slots)) == 1
        blocks = index_tensor([info.block_index for info in infos], dev)
        match self.way(len(rows), whole, level):
            case "full batch":
                kv_append_triton_full_batch(*caches, k, v, blocks, slots[0])
            case "generic":
                kv_append_triton(*caches, k, v, *_both(rows, blocks, slots, dev))
            case _:
                if not whole:
                    chosen = index_tensor(rows, dev)
                    k, v = k.index_select(0, chosen), v.index_select(0, chosen)
                at = slots[0] if level else index_tensor(slots, dev)
                for cache, new in zip(caches, (k, v)):
                    cache[blocks, :, at] = new


def _both(rows, blocks, slots, dev):
    row_t, slot_t = index_tensor([rows, slots], dev)
    return row_t, blocks, slot_t
