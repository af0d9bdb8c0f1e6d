"""lesson: 061
verdict: wrong
cause: wrong-session
shows: cpu
The gate of the full-batch kernel asks for equal positions and enough rows, but not for a whole batch.
If a session is left out (it shares its last block), the kernel takes rows 0, 1, 2 ... of K and V all the same, and the sessions behind the gap get their neighbours' tokens.
"""
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@triton.jit(do_not_specialize=["pos", "key_stride", "value_stride"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(block_idx_ptr + row).to(tl.int64) * (H * BLOCK_SIZE * D) + pos * D
    hd = tl.arange(0, BLOCK_HD)
    ok = hd < H * D
    offset = first + (hd // D) * (BLOCK_SIZE * D) + hd % D
    tl.store(k_cache_ptr + offset, tl.load(key_ptr + row * key_stride + hd, mask=ok), mask=ok)
    tl.store(v_cache_ptr + offset, tl.load(value_ptr + row * value_stride + hd, mask=ok), mask=ok)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    H, block_size, D = k_cache_layer.shape[1:]
    _kv_append_full_batch_kernel[(block_idx.numel(),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0), H, D, block_size, triton.next_power_of_2(H * D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        never = float("inf")
        generic = config.triton_kv_append_min_batch
        runs = triton_runs_on(kv.device)
        self.generic_from = generic if runs else never
        self.full_from = (config.triton_kv_append_full_batch_min_batch or generic) if runs else never

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]
    ) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        mine: dict[int, KVBlockInfo] = {}
        for b, block_ids in enumerate(block_ids_list):
            last = self.kv.info(block_ids[-1]) if block_ids else None
            if last is None or last.length == self.kv.block_size:
                block_ids.append(
                    self.kv.allocate_block(layer_idx, last.start + last.length if last else 0)
                )
                last = self.kv.info(block_ids[-1])
            if last.owners == 1:
                mine[b] = last
        if mine:
            self.write(layer_idx, list(mine), list(mine.values()), key_new, value_new)
            for info in mine.values():
                info.length += 1
        for b in range(len(block_ids_list)):
            if b not in mine:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self,
        layer_idx: int,
        batch_idx: list[int],
        infos: list[KVBlockInfo],
        key_new: Tensor,
        value_new: Tensor,
    ) -> None:
        n, device = len(infos), self.kv.device
        caches = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        slots = [info.length for info in infos]
        constant = slots.count(slots[0]) == n
        blocks = index_tensor([info.block_index for info in infos], device)
        if constant and n >= self.full_from:
            kv_append_triton_full_batch(*caches, key_new, value_new, blocks, slots[0])
            return
        if n >= self.generic_from:
            rows, positions = index_tensor([batch_idx, slots], device)
            kv_append_triton(*caches, key_new, value_new, rows, blocks, positions)
            return
        at = slots[0] if constant else index_tensor(slots, device)
        rows = None if n == len(key_new) else index_tensor(batch_idx, device)
        for cache, new in zip(caches, (key_new, value_new), strict=True):
            cache[blocks, :, at] = new if rows is None else new.index_select(0, rows)
