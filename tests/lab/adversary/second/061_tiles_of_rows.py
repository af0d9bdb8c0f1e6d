"""lesson: 061
verdict: right
cause: right
shows: both
A program copies four sessions as a tile [4, lanes], masked on both sides; paths are functions in a table, tried in order.
"""

import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor

ROWS = 4  # sessions of one program


@triton.jit(do_not_specialize=["B", "pos", "ks", "vs"])
def _tile(
    kc, vc, kn, vn, blocks, B, pos, ks, vs,
    H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0) * R + tl.arange(0, R)
    there = b < B
    block = tl.load(blocks + b, mask=there, other=0).to(tl.int64)
    lane = tl.arange(0, LANES)
    inside = there[:, None] & (lane < H * D)[None, :]
    b = b.to(tl.int64)[:, None]
    to = block[:, None] * (H * S * D) + ((lane // D) * (S * D) + lane % D)[None, :] + pos * D
    tl.store(kc + to, tl.load(kn + b * ks + lane[None, :], mask=inside), mask=inside)
    tl.store(vc + to, tl.load(vn + b * vs + lane[None, :], mask=inside), mask=inside)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    B, H, D = key_new.shape
    _tile[(triton.cdiv(B, ROWS),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, B, pos, key_new.stride(0), value_new.stride(0),
        H=H, D=D, S=k_cache_layer.shape[2], LANES=triton.next_power_of_2(H * D), R=ROWS,
    )  # fmt: skip


class Job:
    """What is to be written in one layer: rows of K and V, and the blocks that take them."""

    def __init__(self, kv, layer_idx, rows, infos, key_new, value_new):
        self.caches = kv.k_layers[layer_idx], kv.v_layers[layer_idx]
        self.new = key_new, value_new
        self.device = kv.device
        self.rows = rows
        self.blocks = [info.block_index for info in infos]
        self.slots = [info.length for info in infos]
        self.whole = len(rows) == len(key_new)
        self.constant = self.slots.count(self.slots[0]) == len(self.slots)

    def full_batch(self):
        kv_append_triton_full_batch(*self.caches, *self.new, index_tensor(self.blocks, self.device), self.slots[0])

    def generic(self):
        kv_append_triton(*self.caches, *self.new, *index_tensor([self.rows, self.blocks, self.slots], self.device))

    def stores(self):
        blocks = index_tensor(self.blocks, self.device)
        slots = self.slots[0] if self.constant else index_tensor(self.slots, self.device)
        rows = None if self.whole else index_tensor(self.rows, self.device)
        for cache, new in zip(self.caches, self.new, strict=True):
            cache[blocks, :, slots] = new if rows is None else new.index_select(0, rows)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        generic_from = config.triton_kv_append_min_batch
        full_from = config.triton_kv_append_full_batch_min_batch or generic_from
        self.paths = [(lambda job: True, Job.stores)]
        if triton_runs_on(kv.device):
            self.paths.insert(0, (lambda job: len(job.rows) >= generic_from, Job.generic))
            self.paths.insert(
                0, (lambda job: job.whole and job.constant and len(job.rows) >= full_from, Job.full_batch)
            )

    def __call__(self, sessions, keys, values):
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, copies = [], [], []
        for b, ids in enumerate(block_ids_list):
            if not ids or self.kv.info(ids[-1]).length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, len(ids) * self.kv.block_size))
            info = self.kv.info(ids[-1])
            if info.owners == 1:
                rows.append(b)
                infos.append(info)
            else:
                copies.append(b)
        if rows:
            job = Job(self.kv, layer_idx, rows, infos, key_new, value_new)
            next(path for fits, path in self.paths if fits(job))(job)
            for info in infos:
                info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
