# right
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos", "key_stride", "value_stride"])
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
    P2_H: tl.constexpr,
    P2_D: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    first = tl.load(block_idx_ptr + b).to(tl.int64) * H * BLOCK_SIZE * D
    h = tl.arange(0, P2_H)[:, None]
    d = tl.arange(0, P2_D)[None, :]
    valid = (h < H) & (d < D)
    source = h * D + d
    target = first + h * BLOCK_SIZE * D + pos * D + d
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + source, mask=valid), mask=valid)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + source, mask=valid), mask=valid)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    heads, block_size, dim = k_cache_layer.shape[1:]
    sizes = {"H": heads, "D": dim, "BLOCK_SIZE": block_size}
    rounded = {"P2_H": triton.next_power_of_2(heads), "P2_D": triton.next_power_of_2(dim)}
    _kv_append_full_batch_kernel[block_idx.shape](
        k_cache_layer,
        v_cache_layer,
        key_new,
        value_new,
        block_idx,
        pos,
        key_new.stride(0),
        value_new.stride(0),
        **sizes,
        **rounded,
    )


@dataclass
class Job:
    caches: tuple[Tensor, Tensor]
    new: tuple[Tensor, Tensor]
    rows: list[int]
    infos: list[Any]

    def __post_init__(self):
        self.device = self.caches[0].device
        self.slots = [info.length for info in self.infos]
        self.blocks = index_tensor([info.block_index for info in self.infos], self.device)
        self.whole = len(self.rows) == len(self.new[0])
        self.constant = min(self.slots) == max(self.slots)

    def __len__(self):
        return len(self.rows)


def by_special_kernel(job):
    kv_append_triton_full_batch(*job.caches, *job.new, job.blocks, job.slots[0])


def by_generic_kernel(job):
    rows, slots = index_tensor([job.rows, job.slots], job.device)
    kv_append_triton(*job.caches, *job.new, rows, job.blocks, slots)


def by_stores(job):
    slots = job.slots[0] if job.constant else index_tensor(job.slots, job.device)
    new = job.new
    if not job.whole:
        rows = index_tensor(job.rows, job.device)
        new = tuple((x.index_select(0, rows) for x in new))
    for cache, x in zip(job.caches, new, strict=True):
        cache[job.blocks, :, slots] = x


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        generic = config.triton_kv_append_min_batch
        special = config.triton_kv_append_full_batch_min_batch or generic
        self.ways = [(lambda job: True, by_stores)]
        if triton_runs_on(kv.device):
            self.ways.insert(0, (lambda job: len(job) >= generic, by_generic_kernel))
            self.ways.insert(0, (lambda job: job.whole and job.constant and (len(job) >= special), by_special_kernel))

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def own_info(self, layer_idx, ids):
        info = self.kv.info(ids[-1]) if ids else None
        if info is None or info.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer_idx, len(ids) * self.kv.block_size))
            info = self.kv.info(ids[-1])
        return info if info.owners == 1 else None

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.own_info(layer_idx, ids) for ids in block_ids_list]
        rows = [b for b, info in enumerate(infos) if info is not None]
        if rows:
            caches = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            job = Job(caches, (key_new, value_new), rows, [infos[b] for b in rows])
            next((write for applies, write in self.ways if applies(job)))(job)
            for info in job.infos:
                info.length += 1
        for b, info in enumerate(infos):
            if info is None:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
