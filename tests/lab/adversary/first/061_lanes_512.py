"""lesson: 061
verdict: wrong
cause: size-limit
shows: cpu
The row of lanes has 512 places whatever the model: with 12 heads of 64 the last four heads are not written.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession

LANES = 512


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    hd = tl.arange(0, LANES)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + hd, mask=inside), mask=inside)


def kv_append_triton_full_batch(
    k_cache_layer: Tensor, v_cache_layer: Tensor, key_new: Tensor, value_new: Tensor, block_idx: Tensor, pos: int
) -> None:
    _, H, block_size, D = k_cache_layer.shape
    _kv_append_full_batch_kernel[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0), H=H, D=D, BLOCK_SIZE=block_size, LANES=LANES,
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device, n = self.kv.device, len(batch_idx)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        full_fast = n == len(key_new)
        positions = [info.length for info in infos]
        pos0 = positions[0]
        const_pos = all(pos == pos0 for pos in positions)
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.triton and full_fast and const_pos and n >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos0)
            return
        if self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
            return
        if not full_fast:
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        slots = pos0 if const_pos else index_tensor(positions, device)
        k_layer[blk_t, :, slots] = key_new
        v_layer[blk_t, :, slots] = value_new
