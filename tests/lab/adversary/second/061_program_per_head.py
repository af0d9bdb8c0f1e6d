"""lesson: 061
verdict: right
cause: right
shows: both
The grid is (B, H): a program copies one head, so that no lane divides anything, and only a D that is no power of two is masked.
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
def _one_head(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    row = (block * tl.num_programs(1) + h) * BLOCK_SIZE + pos
    key = tl.load(key_ptr + b * key_stride + h * D + d, mask=inside)
    value = tl.load(value_ptr + b * value_stride + h * D + d, mask=inside)
    tl.store(k_cache_ptr + row * D + d, key, mask=inside)
    tl.store(v_cache_ptr + row * D + d, value, mask=inside)


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    _, H, block_size, D = k_cache_layer.shape
    _one_head[(len(block_idx), H)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        D=D, BLOCK_SIZE=block_size, BLOCK_D=triton.next_power_of_2(D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        full = config.triton_kv_append_full_batch_min_batch
        self.full_batch_min_batch = self.min_batch if full is None else full

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        alone: dict[int, KVBlockInfo] = {}
        shared: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, len(block_ids) * self.kv.block_size))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                shared.append(b)
            else:
                alone[b] = info
        if alone:
            self.write(layer_idx, list(alone), list(alone.values()), key_new, value_new)
            for info in alone.values():
                info.length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, rows: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        n, device = len(rows), self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        slots = [info.length for info in infos]
        blocks = index_tensor([info.block_index for info in infos], device)
        whole, constant = n == len(key_new), len(set(slots)) == 1
        if whole and constant and self.triton and n >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, slots[0])
        elif self.triton and n >= self.min_batch:
            rows_t, slots_t = index_tensor([rows, slots], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, rows_t, blocks, slots_t)
        else:
            if not whole:
                rows_t = index_tensor(rows, device)
                key_new, value_new = key_new.index_select(0, rows_t), value_new.index_select(0, rows_t)
            at = slots[0] if constant else index_tensor(slots, device)
            k_layer[blocks, :, at] = key_new
            v_layer[blocks, :, at] = value_new
