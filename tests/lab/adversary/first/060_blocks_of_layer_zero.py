"""lesson: 060
verdict: wrong
cause: wrong-block
shows: cpu
Makes the tensor of blocks once in a step, from layer 0, and uses it in all layers. The layers have pools of their
own: as soon as their free lists differ in order, the other layers are written to foreign blocks.
"""

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.full = kv.block_size
        self.blk = None  # of the step, from its first layer

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer, [s.block_ids_per_layer[layer] for s in sessions], k, v)

    def tail(self, layer, ids):
        """The block that the next token goes to; a new one if the last is full."""
        last = self.kv.info(ids[-1]) if ids else None
        if last and last.length < self.full:
            return last
        ids.append(self.kv.allocate_block(layer, len(ids) * self.full))
        return self.kv.info(ids[-1])

    def append_token_batch(self, layer, tables, k, v):
        tails = [self.tail(layer, ids) for ids in tables]
        own = [b for b, i in enumerate(tails) if i.owners == 1]
        if own:
            if layer == 0:
                self.blk = index_tensor([tails[b].block_index for b in own], self.kv.device)
            slots = {tails[b].length for b in own}
            at = slots.pop() if len(slots) == 1 else index_tensor([tails[b].length for b in own], self.kv.device)
            if len(own) == len(tables):
                new_k, new_v = k, v
            else:
                idx = index_tensor(own, self.kv.device)
                new_k, new_v = torch.index_select(k, 0, idx), torch.index_select(v, 0, idx)
            self.kv.k_layers[layer][self.blk, :, at] = new_k
            self.kv.v_layers[layer][self.blk, :, at] = new_v
            for b in own:
                tails[b].length += 1
        for b in [b for b, i in enumerate(tails) if b not in own]:
            self.kv.append_token(layer, tables[b], k[b], v[b])
