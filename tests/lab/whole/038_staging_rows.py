# wrong, which a CPU can show
import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        _, heads, _, dim = kv.k_layers[0].shape
        shape = (config.max_batch_size, heads, dim)
        self.k_rows = torch.empty(shape, dtype=torch.float16, device=kv.device)
        self.v_rows = torch.empty(shape, dtype=torch.float16, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, infos, slow = ([], [], [])
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is not None and info.length < self.kv.block_size and (info.owners < 2):
                fast.append(b)
                infos.append(info)
            else:
                slow.append(b)
        n = len(fast)
        if n:
            idx = index_tensor(fast, self.kv.device)
            blk = index_tensor([info.block_index for info in infos], self.kv.device)
            pos = index_tensor([info.length for info in infos], self.kv.device)
            self.k_rows[:n].copy_(key_new.index_select(0, idx))
            self.v_rows[:n].copy_(value_new.index_select(0, idx))
            k_layer, v_layer = (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            k_layer[blk, :, pos] = self.k_rows[:n].to(k_layer.dtype)
            v_layer[blk, :, pos] = self.v_rows[:n].to(v_layer.dtype)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
