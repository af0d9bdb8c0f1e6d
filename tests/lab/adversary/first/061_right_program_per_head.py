"""lesson: 061
verdict: right
cause: right
shows: cpu
A grid of (batch, heads), with the strides of the cache passed as numbers; the scan is split into functions of its
own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@triton.jit(do_not_specialize=["slot", "sk", "sv", "cb", "ch", "cs"])
def _head_kernel(kc, vc, kn, vn, blocks, slot, sk, sv, cb, ch, cs, D: tl.constexpr, LANES: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, LANES)
    to = tl.load(blocks + request).to(tl.int64) * cb + head * ch + slot * cs + d
    k = tl.load(kn + request * sk + head * D + d, mask=d < D)
    v = tl.load(vn + request * sv + head * D + d, mask=d < D)
    tl.store(kc + to, k, mask=d < D)
    tl.store(vc + to, v, mask=d < D)


def kv_append_triton_full_batch(
    k_cache_layer: Tensor, v_cache_layer: Tensor, key_new: Tensor, value_new: Tensor, block_idx: Tensor, pos: int
) -> None:
    batch, heads, dim = key_new.shape
    block, head, slot, _ = k_cache_layer.stride()
    grid = (batch, heads)
    _head_kernel[grid](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0), block, head, slot, D=dim, LANES=triton.next_power_of_2(dim),
    )  # fmt: skip


@dataclass
class Row:
    """A request that is written with the batch: its place in it, and its block."""

    number: int
    info: KVBlockInfo


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        generic, whole = config.triton_kv_append_min_batch, config.triton_kv_append_full_batch_min_batch
        runs = triton_runs_on(kv.device)
        self.kv = kv
        self.generic_from = generic if runs else float("inf")
        self.whole_from = (generic if whole is None else whole) if runs else float("inf")

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            lists = [session.block_ids_per_layer[layer] for session in sessions]
            infos = [self.last(layer, ids) for ids in lists]
            rows = [Row(b, info) for b, info in enumerate(infos) if info.owners == 1]
            copies = [b for b, info in enumerate(infos) if info.owners > 1]
            if rows:
                self.store(layer, rows, k, v)
            for row in rows:
                row.info.length += 1
            for b in copies:
                self.kv.append_token(layer, lists[b], k[b], v[b])

    def last(self, layer: int, ids: list[int]) -> KVBlockInfo:
        """The block that the next token goes to, a new one where the last is full."""
        end = self.kv.info(ids[-1]) if ids else None
        if end is not None and end.length < self.kv.block_size:
            return end
        ids.append(self.kv.allocate_block(layer, end.start + end.length if end else 0))
        return self.kv.info(ids[-1])

    def store(self, layer: int, rows: list[Row], k: Tensor, v: Tensor) -> None:
        caches = self.kv.k_layers[layer], self.kv.v_layers[layer]
        blocks = index_tensor([row.info.block_index for row in rows], self.kv.device)
        slots = [row.info.length for row in rows]
        level, whole = len(set(slots)) == 1, len(rows) == k.shape[0]
        if level and whole and len(rows) >= self.whole_from:
            kv_append_triton_full_batch(*caches, k, v, blocks, slots[0])
        elif len(rows) >= self.generic_from:
            numbers, places = index_tensor([[row.number for row in rows], slots], self.kv.device)
            kv_append_triton(*caches, k, v, numbers, blocks, places)
        else:
            picked = (slice(None),) if whole else (index_tensor([row.number for row in rows], self.kv.device),)
            at = slots[0] if level else index_tensor(slots, self.kv.device)
            for cache, new in zip(caches, (k, v), strict=True):
                cache[blocks, :, at] = new[picked]
