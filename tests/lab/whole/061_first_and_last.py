# wrong, which a CPU can show
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    K, V, k, v, blocks, pos, k_row, v_row, H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, N: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64)
    x = tl.arange(0, N)
    ok = x < H * D
    address = ((tl.load(blocks + i).to(tl.int64) * H + x // D) * S + pos) * D + x % D
    tl.store(K + address, tl.load(k + i * k_row + x, mask=ok), mask=ok)
    tl.store(V + address, tl.load(v + i * v_row + x, mask=ok), mask=ok)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    _, H, S, D = k_cache_layer.shape
    args = (k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, key_new.stride(0), value_new.stride(0))
    _kv_append_full_batch_kernel[len(block_idx),](*args, H=H, D=D, S=S, N=triton.next_power_of_2(H * D))


def same_slot_everywhere(slots):
    return slots[0] == slots[-1]


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.by_triton = triton_runs_on(kv.device)
        self.at_least = config.triton_kv_append_min_batch
        self.at_least_full = config.triton_kv_append_full_batch_min_batch
        if self.at_least_full is None:
            self.at_least_full = self.at_least

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = ([], [])
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                fast.append((b, info))
        if fast:
            rows, infos = map(list, zip(*fast))
            self.write(layer_idx, rows, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, rows, infos, key_new, value_new):
        device = self.kv.device
        k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        slots = [info.length for info in infos]
        blocks = index_tensor([info.block_index for info in infos], device)
        whole = len(rows) == len(key_new)
        if self.by_triton and whole and (len(rows) >= self.at_least_full) and same_slot_everywhere(slots):
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, slots[0])
            return
        if self.by_triton and len(rows) >= self.at_least:
            rows_t, slots_t = index_tensor([rows, slots], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, rows_t, blocks, slots_t)
            return
        if not whole:
            rows_t = index_tensor(rows, device)
            key_new, value_new = (key_new.index_select(0, rows_t), value_new.index_select(0, rows_t))
        slots_t = slots[0] if all((slot == slots[0] for slot in slots)) else index_tensor(slots, device)
        k_layer[blocks, :, slots_t] = key_new
        v_layer[blocks, :, slots_t] = value_new
