"""lesson: 061
verdict: right
cause: right
shows: both
A grid of sessions x 2: program (b, 0) copies K, program (b, 1) copies V, in one launch. The part extends a small base of its own with super().
"""

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit
def _copy_row(from_ptr, to_ptr, row_start, block, pos, H: tl.constexpr, S: tl.constexpr, D: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    ok = i < H * D
    x = tl.load(from_ptr + row_start + i, mask=ok)
    tl.store(to_ptr + block * (H * S * D) + (i // D) * (S * D) + pos * D + i % D, x, mask=ok)


@triton.jit(do_not_specialize=["pos"])
def _k_or_v(
    k_cache, v_cache, key, value, blocks, pos, key_stride, value_stride,
    H: tl.constexpr, S: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks + b).to(tl.int64)
    if tl.program_id(1) == 0:
        _copy_row(key, k_cache, b * key_stride, block, pos, H, S, D, N)
    else:
        _copy_row(value, v_cache, b * value_stride, block, pos, H, S, D, N)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    B = block_idx.shape[0]
    H, S, D = k_cache_layer.shape[1:]
    _k_or_v[B, 2](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, key_new.stride(0), value_new.stride(0),
        H, S, D, triton.next_power_of_2(H * D),
    )  # fmt: skip


@dataclass
class Batch:
    layer: int
    rows: list = field(default_factory=list)
    infos: list = field(default_factory=list)
    shared: list = field(default_factory=list)


class _Scan:
    def __init__(self, kv):
        self.kv = kv

    def scan(self, layer, tables):
        batch = Batch(layer)
        for row, table in enumerate(tables):
            if not table:
                table.append(self.kv.allocate_block(layer, 0))
            info = self.kv.info(table[-1])
            if info.length == self.kv.block_size:
                table.append(self.kv.allocate_block(layer, info.start + info.length))
                info = self.kv.info(table[-1])
            if info.owners > 1:
                batch.shared.append(row)
            else:
                batch.rows.append(row)
                batch.infos.append(info)
        return batch


class MyKVAppend(_Scan):
    def __init__(self, model, kv, config):
        super().__init__(kv)
        self.generic_from = config.triton_kv_append_min_batch
        self.full_from = config.triton_kv_append_full_batch_min_batch or self.generic_from
        self.triton = triton_runs_on(kv.device)

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            batch = self.scan(layer, tables)
            if batch.rows:
                self.write(batch, k, v)
            for info in batch.infos:
                info.length += 1
            for row in batch.shared:
                self.kv.append_token(layer, tables[row], k[row], v[row])

    def write(self, batch, k, v):
        n, on = len(batch.rows), self.kv.device
        caches = (self.kv.k_layers[batch.layer], self.kv.v_layers[batch.layer])
        slots = [info.length for info in batch.infos]
        low = min(slots)
        level = low == max(slots)
        blocks = index_tensor([info.block_index for info in batch.infos], on)
        if self.triton and not batch.shared and level and n >= self.full_from:
            return kv_append_triton_full_batch(*caches, k, v, blocks, low)
        if self.triton and n >= self.generic_from:
            rows, at = index_tensor([batch.rows, slots], on)
            return kv_append_triton(*caches, k, v, rows, blocks, at)
        if batch.shared:
            rows = index_tensor(batch.rows, on)
            k, v = k.index_select(0, rows), v.index_select(0, rows)
        where = (blocks, slice(None), low if level else index_tensor(slots, on))
        caches[0][where] = k
        caches[1][where] = v
        return None
