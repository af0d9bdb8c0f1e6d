"""lesson: 059
verdict: wrong
cause: cow-missed
shows: cpu
A block counts as shared if two lists of this batch end with it. A fork that waits, and is not in the step, is not seen:
the token goes into the block that it shares.
"""

from collections import Counter
from operator import attrgetter

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx,
                [session.block_ids_per_layer[layer_idx] for session in sessions],
                keys[layer_idx],
                values[layer_idx],
            )

    def _begin_blocks(self, layer_idx, block_ids_list):
        for ids in block_ids_list:
            last = self.kv.info(ids[-1]) if ids else None
            if last is None:
                ids.append(self.kv.allocate_block(layer_idx, 0))
            elif last.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, last.start + last.length))

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        self._begin_blocks(layer_idx, block_ids_list)
        last_ids = [ids[-1] for ids in block_ids_list]
        writers = Counter(last_ids)
        slow = [b for b, block_id in enumerate(last_ids) if writers[block_id] > 1]
        fast = [b for b, block_id in enumerate(last_ids) if writers[block_id] == 1]
        if fast:
            infos = [self.kv.info(last_ids[b]) for b in fast]
            idx, blk, pos = index_tensor(
                [fast, list(map(attrgetter("block_index"), infos)), list(map(attrgetter("length"), infos))],
                self.kv.device,
            )
            self.kv.k_layers[layer_idx].index_put_((blk, *self._heads(key_new), pos), key_new[idx].transpose(0, 1))
            self.kv.v_layers[layer_idx].index_put_((blk, *self._heads(value_new), pos), value_new[idx].transpose(0, 1))
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    @staticmethod
    def _heads(rows):
        import torch

        return (torch.arange(rows.shape[1], device=rows.device)[:, None],)
