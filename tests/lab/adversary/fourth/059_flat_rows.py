"""lesson: 059
verdict: right
cause: right
shows: cpu
A helper outside the class finds the place of each token; K and V go by `index_copy_` into a layer seen as one list of
rows. Copies of shared blocks are left to `append_token`.
"""

import torch

from rosecourse.kv.buffers import index_tensor


def place_of_next_token(kv, layer, table):
    """The description of the block that takes the next token of a table; begins one if it must."""
    tail = kv.info(table[-1]) if len(table) else None
    if tail is not None and tail.length != kv.block_size:
        return tail
    table += [kv.allocate_block(layer, 0 if tail is None else tail.start + tail.length)]
    return kv.info(table[-1])


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        _, self.heads, self.slots, self.dim = kv.k_layers[0].shape
        self.rows_of_heads = torch.arange(self.heads, device=kv.device) * self.slots

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_token_batch(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, private, late, first_rows = self.kv, [], [], []
        for b, table in enumerate(block_ids_list):
            info = place_of_next_token(kv, layer_idx, table)
            if info.owners > 1:
                late.append(b)
            else:
                private.append((b, info))
                first_rows.append(info.block_index * self.heads * self.slots + info.length)
        if private:
            rows = (index_tensor(first_rows, kv.device)[:, None] + self.rows_of_heads).flatten()
            chosen = index_tensor([b for b, _ in private], kv.device)
            for cache, new in ((kv.k_layers, key_new), (kv.v_layers, value_new)):
                new = new.index_select(0, chosen).reshape(-1, self.dim)
                cache[layer_idx].view(-1, self.dim).index_copy_(0, rows, new)
            for _, info in private:
                info.length += 1
        for b in late:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
