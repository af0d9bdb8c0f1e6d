"""lesson: 061
verdict: right
cause: right
shows: cpu
One launch with a grid of (sessions, 2): the second axis says whether a program writes K or V. The paths stand in a table with their conditions, the first that holds is taken.
"""
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit
def _copy_row(source_ptr, cache_ptr, block, pos, H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    inside = lane < H * D
    target = ((block * H + lane // D) * S + pos) * D + lane % D
    tl.store(cache_ptr + target, tl.load(source_ptr + lane, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["pos"])
def _full_batch(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    if tl.program_id(1) == 0:
        _copy_row(key_ptr + b * key_stride, k_cache_ptr, block, pos, H, D, S, LANES)
    else:
        _copy_row(value_ptr + b * value_stride, v_cache_ptr, block, pos, H, D, S, LANES)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    _, H, S, D = k_cache_layer.shape
    _full_batch[(len(block_idx), 2)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, S=S, LANES=triton.next_power_of_2(H * D),
    )


@dataclass
class Job:
    """The tokens of one layer that are written together."""

    layer: int
    rows: list[int]
    infos: list[Any]
    key_new: Any
    value_new: Any

    def __post_init__(self):
        self.size = len(self.rows)
        self.slots = [info.length for info in self.infos]
        self.whole = self.size == len(self.key_new)
        self.level = all(slot == self.slots[0] for slot in self.slots)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        usable = triton_runs_on(kv.device)
        generic = config.triton_kv_append_min_batch
        special = config.triton_kv_append_full_batch_min_batch or generic
        self.paths = (
            (lambda job: usable and job.whole and job.level and job.size >= special, self.special),
            (lambda job: usable and job.size >= generic, self.generic),
            (lambda job: True, self.stores),
        )

    def __call__(self, sessions, keys, values):
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values)):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, key_new, value_new)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, rest = [], [], []
        for row, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(ids[-1])
            if info.owners > 1:
                rest.append(row)
            else:
                rows.append(row)
                infos.append(info)
        if rows:
            job = Job(layer_idx, rows, infos, key_new, value_new)
            next(path for holds, path in self.paths if holds(job))(job)
            for info in infos:
                info.length += 1
        for row in rest:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def caches(self, job):
        return self.kv.k_layers[job.layer], self.kv.v_layers[job.layer]

    def blocks(self, job):
        return index_tensor([info.block_index for info in job.infos], self.kv.device)

    def special(self, job):
        kv_append_triton_full_batch(
            *self.caches(job), job.key_new, job.value_new, self.blocks(job), job.slots[0]
        )

    def generic(self, job):
        rows, slots = index_tensor([job.rows, job.slots], self.kv.device)
        kv_append_triton(*self.caches(job), job.key_new, job.value_new, rows, self.blocks(job), slots)

    def stores(self, job):
        blocks = self.blocks(job)
        slots = job.slots[0] if job.level else index_tensor(job.slots, self.kv.device)
        new = (job.key_new, job.value_new)
        if not job.whole:
            rows = index_tensor(job.rows, self.kv.device)
            new = tuple(rows_of.index_select(0, rows) for rows_of in new)
        for cache, rows_of in zip(self.caches(job), new):
            cache[blocks, :, slots] = rows_of
