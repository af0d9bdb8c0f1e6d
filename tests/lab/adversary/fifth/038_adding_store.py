"""lesson: 038
verdict: wrong
cause: values-changed
shows: cpu
The store is an index_put_ with accumulate=True: the new K and V are added to what the slot holds, in the belief that a free slot holds zeros.
A slot of a block that was used before holds old K and V, so that a sum is stored; in memory that nobody has used yet it looks right.
"""
import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.heads = torch.arange(kv.k_layers[0].shape[1], device=kv.device)

    def __call__(self, sessions, keys, values):
        for n in range(self.kv.num_layers):
            self.append_token_batch(n, [s.block_ids_per_layer[n] for s in sessions], keys[n], values[n])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        last = [self.kv.info(ids[-1]) if ids else None for ids in block_ids_list]
        easy = [
            b for b, i in enumerate(last) if i is not None and i.owners == 1 and i.length != self.kv.block_size
        ]
        hard = sorted(set(range(len(last))) - set(easy))
        if easy:
            numbers = [easy, [last[b].block_index for b in easy], [last[b].length for b in easy]]
            rows, blocks, slots = index_tensor(numbers, self.kv.device)
            where = (blocks[:, None], self.heads[None, :], slots[:, None])  # [n, H]
            # accumulate is the variant that does not depend on the order of the writes
            self.kv.k_layers[layer_idx].index_put_(where, key_new[rows], accumulate=True)
            self.kv.v_layers[layer_idx].index_put_(where, value_new[rows], accumulate=True)
            for b in easy:
                last[b].length += 1
        for b in hard:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
