"""lesson: 059
verdict: wrong
cause: wrong-session
shows: cpu
Collects the targets of sessions inside a block and of those that begin one in two lists and joins them, while the rows
stay in the order of the batch: right if none or all roll over.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        inside, begun, rows, copies = [], [], [], []
        for b, block_ids in enumerate(block_ids_list):
            last = self.kv.info(block_ids[-1]) if block_ids else None
            if last is None or last.length == self.kv.block_size:
                start = len(block_ids) * self.kv.block_size
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                begun.append(self.kv.info(block_ids[-1]))
            elif last.owners == 1:
                inside.append(last)
            else:
                copies.append(b)
                continue
            rows.append(b)
        targets = inside + begun
        if targets:
            where = torch.tensor([[i.block_index, i.length] for i in targets], device=self.kv.device)
            rows_t = torch.tensor(rows, device=self.kv.device)
            self.kv.k_layers[layer_idx][where[:, 0], :, where[:, 1]] = key_new[rows_t]
            self.kv.v_layers[layer_idx][where[:, 0], :, where[:, 1]] = value_new[rows_t]
            for target in targets:
                target.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
