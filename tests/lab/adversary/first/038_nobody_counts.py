"""lesson: 038
verdict: wrong
cause: books-wrong
shows: cpu
Writes the batch and leaves the blocks' `length` as it was, since `append_token` "does the counting": the next token
goes to the same slot.
"""

import torch


def index(numbers, like):
    return torch.as_tensor(numbers, dtype=torch.long, device=like.device)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values, strict=True)):
            ids = [s.block_ids_per_layer[layer_idx] for s in sessions]
            in_place = [b for b in range(len(ids)) if self._next_slot_is_free(ids[b])]
            if in_place:
                infos = [self.kv.info(ids[b][-1]) for b in in_place]
                b_t = index(in_place, key_new)
                blocks = index([info.block_index for info in infos], key_new)
                slots = index([info.length for info in infos], key_new)
                self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[b_t]
                self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[b_t]
            for b in set(range(len(ids))).difference(in_place):
                self.kv.append_token(layer_idx, ids[b], key_new[b], value_new[b])

    def _next_slot_is_free(self, block_ids):
        last = self.kv.info(block_ids[-1]) if block_ids else None
        return last is not None and last.length < self.kv.block_size and last.owners == 1
