# right
import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        _, self.H, self.block_size, self.D = kv.k_layers[0].shape
        self.head_rows = torch.arange(self.H, device=kv.device) * self.block_size

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rest: list[int] = []
        batch: list[int] = []
        first_rows: list[int] = []
        written = []
        for b, ids in enumerate(block_ids_list):
            if not ids:
                rest.append(b)
                continue
            info = self.kv.info(ids[-1])
            if info.owners != 1 or info.length >= self.block_size:
                rest.append(b)
            else:
                batch.append(b)
                first_rows.append(info.block_index * self.H * self.block_size + info.length)
                written.append(info)
        if batch:
            batch_t, first_t = index_tensor([batch, first_rows], self.kv.device)
            rows = (first_t[:, None] + self.head_rows).reshape(-1)
            self.store(self.kv.k_layers[layer_idx], rows, key_new[batch_t])
            self.store(self.kv.v_layers[layer_idx], rows, value_new[batch_t])
        for info in written:
            info.length += 1
        for b in rest:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def store(self, cache, rows, new):
        cache.view(-1, self.D).index_copy_(0, rows, new.reshape(-1, self.D))
