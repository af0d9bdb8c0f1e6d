"""lesson: 061
verdict: right
cause: right
shows: cpu
A two-dimensional tile of heads and dimensions, offset pointers, a list of paths that are asked in turn.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor
from rosecourse.request.session import InferenceSession


@triton.jit(do_not_specialize=["pos", "ks", "vs"])
def _tile_kernel(
    kc, vc, kn, vn, bi, pos, ks, vs,
    H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(axis=0).to(tl.int64)
    base = tl.load(bi + i).to(tl.int64) * (H * S * D) + pos * D
    h, d = tl.arange(0, HP)[:, None], tl.arange(0, DP)[None, :]
    m = (h < H) & (d < D)
    src, dst = h * D + d, base + h * (S * D) + d
    tl.store(kc + dst, tl.load(kn + i * ks + src, mask=m, other=0.0), mask=m)
    tl.store(vc + dst, tl.load(vn + i * vs + src, mask=m, other=0.0), mask=m)


def kv_append_triton_full_batch(
    k_cache_layer: Tensor, v_cache_layer: Tensor, key_new: Tensor, value_new: Tensor, block_idx: Tensor, pos: int
) -> None:
    n, h, d = key_new.shape
    p2 = triton.next_power_of_2
    _tile_kernel[lambda meta: (n,)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, key_new.stride(0), value_new.stride(0),
        H=h, D=d, S=k_cache_layer.size(2), HP=p2(h), DP=p2(d),
    )  # fmt: skip


class MyKVAppend:
    """Asks three writers in turn; the first that takes a batch writes it."""

    def __init__(self, model, kv, config):
        self.kv = kv
        few = config.triton_kv_append_min_batch
        self.limits = (config.triton_kv_append_full_batch_min_batch or few, few)
        self.writers = [self.by_stores]
        if triton_runs_on(kv.device):
            self.writers = [self.by_full_batch_kernel, self.by_generic_kernel, self.by_stores]

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, mine, shared = self.kv, {}, []
        for b, ids in enumerate(block_ids_list):
            if not ids or kv.info(ids[-1]).length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, len(ids) * kv.block_size))
            if kv.info(ids[-1]).owners > 1:
                shared.append(b)
            else:
                mine[b] = kv.info(ids[-1])
        if mine:
            caches = (kv.k_layers[layer_idx], kv.v_layers[layer_idx])
            blocks = index_tensor([info.block_index for info in mine.values()], kv.device)
            next(w for w in self.writers if w(caches, key_new, value_new, mine, blocks))
        for info in mine.values():
            info.length += 1
        for b in shared:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    @staticmethod
    def slots(mine):
        return [info.length for info in mine.values()]

    def by_full_batch_kernel(self, caches, k, v, mine, blocks):
        slots = self.slots(mine)
        if len(mine) != len(k) or len(mine) < self.limits[0] or slots.count(slots[0]) < len(slots):
            return False
        kv_append_triton_full_batch(*caches, k, v, blocks, slots[0])
        return True

    def by_generic_kernel(self, caches, k, v, mine, blocks):
        if len(mine) < self.limits[1]:
            return False
        rows, slots = index_tensor([list(mine), self.slots(mine)], self.kv.device)
        kv_append_triton(*caches, k, v, rows, blocks, slots)
        return True

    def by_stores(self, caches, k, v, mine, blocks):
        slots = self.slots(mine)
        at = slots[0] if min(slots) == max(slots) else index_tensor(slots, self.kv.device)
        if len(mine) < len(k):
            rows = index_tensor(list(mine), self.kv.device)
            k, v = k.index_select(0, rows), v.index_select(0, rows)
        for cache, new in zip(caches, (k, v), strict=True):
            cache[blocks, :, at] = new
        return True
