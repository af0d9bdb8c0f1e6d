"""lesson: 061
verdict: right
cause: right
shows: both
A program's lanes form a tile [heads, dims], each side a power of two with a mask of its own.
"""
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def tile_kernel(kc_ptr, vc_ptr, kn_ptr, vn_ptr, blk_ptr, pos, kn_stride, vn_stride,
                H: tl.constexpr, S: tl.constexpr, D: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HP)[:, None]
    d = tl.arange(0, DP)[None, :]
    ok = (h < H) & (d < D)
    base = tl.load(blk_ptr + row).to(tl.int64) * (H * S * D) + pos * D
    dst = base + h * (S * D) + d
    src = h * D + d
    tl.store(kc_ptr + dst, tl.load(kn_ptr + row * kn_stride + src, mask=ok), mask=ok)
    tl.store(vc_ptr + dst, tl.load(vn_ptr + row * vn_stride + src, mask=ok), mask=ok)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    N, H, S, D = k_cache_layer.shape
    p2 = triton.next_power_of_2
    tile_kernel[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, key_new.stride(0), value_new.stride(0),
        H, S, D, p2(H), p2(D))


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.thresholds = None
        if triton_runs_on(kv.device):
            small = config.triton_kv_append_min_batch
            self.thresholds = config.triton_kv_append_full_batch_min_batch or small, small

    def __call__(self, sessions, keys, values):
        layers = zip(*(s.block_ids_per_layer for s in sessions), strict=True)  # each layer's lists of all sessions
        for layer_idx, (lists, k, v) in enumerate(zip(layers, keys, values, strict=True)):
            self.append_token_batch(layer_idx, lists, k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        alone, shared = [], []
        for b, ids in enumerate(block_ids_list):
            if not ids:
                ids.append(kv.allocate_block(layer_idx))
            info = kv.info(ids[-1])
            if info.length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, info.start + info.length))
                info = kv.info(ids[-1])
            (shared if info.owners > 1 else alone).append((b, info))
        if alone:
            self.store(layer_idx, alone, key_new, value_new)
        for _, info in alone:
            info.length += 1
        for b, _ in shared:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def path(self, whole, constant, n):
        if self.thresholds is None:
            return "store"
        full_from, generic_from = self.thresholds
        if whole and constant and n >= full_from:
            return "full"
        return "generic" if n >= generic_from else "store"

    def store(self, layer_idx, alone, key_new, value_new):
        kv, n = self.kv, len(alone)
        whole = n == len(key_new)
        slots = [info.length for _, info in alone]
        constant = min(slots) == max(slots)
        k_layer, v_layer = kv.k_layers[layer_idx], kv.v_layers[layer_idx]
        blocks = index_tensor([info.block_index for _, info in alone], kv.device)
        path = self.path(whole, constant, n)
        if path == "full":
            return kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, slots[0])
        if path == "generic":
            rows, pos = index_tensor([[b for b, _ in alone], slots], kv.device)
            return kv_append_triton(k_layer, v_layer, key_new, value_new, rows, blocks, pos)
        if not whole:
            rows = index_tensor([b for b, _ in alone], kv.device)
            key_new, value_new = key_new.index_select(0, rows), value_new.index_select(0, rows)
        at = slots[0] if constant else index_tensor(slots, kv.device)
        k_layer[blocks, :, at] = key_new
        v_layer[blocks, :, at] = value_new
