# wrong, which no CPU can show
import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = ([], [])
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            (slow if info.owners > 1 else fast).append((b, info))
        if fast:
            self.write(layer_idx, *zip(*fast), key_new, value_new)
            for _, info in fast:
                info.length += 1
        for b, _ in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        if len(batch_idx) != len(key_new):
            rows = torch.tensor(batch_idx)
            key_new = torch.index_select(key_new, 0, rows)
            value_new = torch.index_select(value_new, 0, rows)
        positions = [info.length for info in infos]
        slots = positions[0]
        if any((position != slots for position in positions)):
            slots = index_tensor(positions, self.kv.device)
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
