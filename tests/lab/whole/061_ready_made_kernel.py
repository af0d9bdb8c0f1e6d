# launches the course's own kernel, which is not our business
from rosecourse import kernels
from rosecourse.kv.buffers import index_tensor


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    kernels.kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton = kernels.triton_runs_on(kv.device)
        self.generic_min = config.triton_kv_append_min_batch
        self.full_min = config.triton_kv_append_full_batch_min_batch or self.generic_min

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            ids = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, ids, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = ([], [], [])
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

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device, n = (self.kv.device, len(batch_idx))
        layers = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
        full_fast = n == len(key_new)
        positions = [info.length for info in infos]
        const_pos = max(positions) == min(positions)
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.triton and full_fast and const_pos and (n >= self.full_min):
            kv_append_triton_full_batch(*layers, key_new, value_new, blk_t, positions[0])
            return
        if self.triton and n >= self.generic_min:
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kernels.kv_append_triton(*layers, key_new, value_new, idx_t, blk_t, pos_t)
            return
        if not full_fast:
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = (key_new.index_select(0, idx_t), value_new.index_select(0, idx_t))
        slots = positions[0] if const_pos else index_tensor(positions, device)
        layers[0][blk_t, :, slots] = key_new
        layers[1][blk_t, :, slots] = value_new
