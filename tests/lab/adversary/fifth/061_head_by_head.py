"""lesson: 061
verdict: right
cause: right
shows: cpu
One launch with a program for each session and head: a grid of (B, H), a row of D lanes in each program. Plain loops everywhere else; gates as the lesson asks.
"""
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos", "key_stride", "value_stride"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    ok = d < D
    cache_row = (block * num_heads + h) * BLOCK_SIZE + pos
    k = tl.load(key_ptr + b * key_stride + h * D + d, mask=ok)
    tl.store(k_cache_ptr + cache_row * D + d, k, mask=ok)
    v = tl.load(value_ptr + b * value_stride + h * D + d, mask=ok)
    tl.store(v_cache_ptr + cache_row * D + d, v, mask=ok)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    num_heads = k_cache_layer.shape[1]
    block_size = k_cache_layer.shape[2]
    head_dim = k_cache_layer.shape[3]
    grid = (block_idx.shape[0], num_heads)
    _kv_append_full_batch_kernel[grid](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        D=head_dim, BLOCK_SIZE=block_size, BLOCK_D=triton.next_power_of_2(head_dim),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton_ok = triton_runs_on(kv.device)
        self.threshold = config.triton_kv_append_min_batch
        self.threshold_full = config.triton_kv_append_full_batch_min_batch
        if self.threshold_full is None:
            self.threshold_full = self.threshold

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = []
            for session in sessions:
                block_ids_list.append(session.block_ids_per_layer[layer_idx])
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        batch_idx = []
        infos = []
        slow = []
        for b in range(len(block_ids_list)):
            block_ids = block_ids_list[b]
            if len(block_ids) == 0:
                block_ids.append(self.kv.allocate_block(layer_idx, 0))
            else:
                last = self.kv.info(block_ids[-1])
                if last.length == self.kv.block_size:
                    block_ids.append(self.kv.allocate_block(layer_idx, last.start + last.length))
            info = self.kv.info(block_ids[-1])
            if info.owners == 1:
                batch_idx.append(b)
                infos.append(info)
            else:
                slow.append(b)

        if len(batch_idx) > 0:
            self.write(layer_idx, batch_idx, infos, key_new, value_new)
            for info in infos:
                info.length = info.length + 1

        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        k_layer = self.kv.k_layers[layer_idx]
        v_layer = self.kv.v_layers[layer_idx]
        n = len(batch_idx)

        blocks = []
        positions = []
        same_position = True
        for info in infos:
            blocks.append(info.block_index)
            positions.append(info.length)
            if info.length != infos[0].length:
                same_position = False
        whole_batch = n == len(key_new)
        blk_t = index_tensor(blocks, self.kv.device)

        if self.triton_ok and whole_batch and same_position and n >= self.threshold_full:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, positions[0])
            return

        if self.triton_ok and n >= self.threshold:
            idx_t, pos_t = index_tensor([batch_idx, positions], self.kv.device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
            return

        if not whole_batch:
            idx_t = index_tensor(batch_idx, self.kv.device)
            key_new = key_new.index_select(0, idx_t)
            value_new = value_new.index_select(0, idx_t)
        if same_position:
            k_layer[blk_t, :, positions[0]] = key_new
            v_layer[blk_t, :, positions[0]] = value_new
        else:
            pos_t = index_tensor(positions, self.kv.device)
            k_layer[blk_t, :, pos_t] = key_new
            v_layer[blk_t, :, pos_t] = value_new
