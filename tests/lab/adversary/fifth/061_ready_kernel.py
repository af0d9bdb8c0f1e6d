"""lesson: 061
verdict: wrong
cause: not-own-work
shows: cpu
The gate is the learner's and right, but the wrapper launches the course's own full-batch kernel, which it takes out of rosecourse.kernels.kv_append.
The kernel that was to be written is not there.
"""
import triton

from rosecourse.kernels import kv_append as ready
from rosecourse.kernels import triton_runs_on
from rosecourse.kv.buffers import index_tensor


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    H, size, D = k_cache_layer.shape[1:]
    launch = ready._kv_append_full_batch_kernel[(len(block_idx),)]
    strides = key_new.stride(0), value_new.stride(0)
    launch(
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, *strides,
        H=H, D=D, BLOCK_SIZE=size, BLOCK_HD=triton.next_power_of_2(H * D),
    )


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.gates = None
        if triton_runs_on(kv.device):
            generic, full = config.triton_kv_append_min_batch, config.triton_kv_append_full_batch_min_batch
            self.gates = generic, generic if full is None else full

    def __call__(self, sessions, keys, values):
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        together, shared = [], []
        for row, ids in enumerate(block_ids_list):
            if not ids or kv.info(ids[-1]).length == kv.block_size:
                ids.append(kv.allocate_block(layer_idx, kv.block_size * len(ids)))
            info = kv.info(ids[-1])
            if info.owners > 1:
                shared.append(row)
            else:
                together.append((row, info.block_index, info.length, info))
        if together:
            rows, blocks, slots, infos = map(list, zip(*together))
            self.write(layer_idx, rows, blocks, slots, key_new, value_new)
            for info in infos:
                info.length += 1
        for row in shared:
            kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def write(self, layer_idx, rows, blocks, slots, key_new, value_new):
        n, device = len(rows), self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        whole, level = n == len(key_new), len(set(slots)) == 1
        if self.gates and whole and level and n >= self.gates[1]:
            where = index_tensor(blocks, device)
            return kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, where, slots[0])
        if self.gates and n >= self.gates[0]:
            lists = index_tensor([rows, blocks, slots], device)
            return ready.kv_append_triton(k_layer, v_layer, key_new, value_new, *lists)
        if not whole:
            picked = index_tensor(rows, device)
            key_new, value_new = key_new.index_select(0, picked), value_new.index_select(0, picked)
        where, slot = index_tensor(blocks, device), slots[0] if level else index_tensor(slots, device)
        k_layer[where, :, slot] = key_new
        v_layer[where, :, slot] = value_new
