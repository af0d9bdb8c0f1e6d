"""lesson: 038
verdict: wrong
cause: goal-missed
shows: cpu
Groups the batch by slot and stores group by group: as many pairs of stores as there are different slots, up to one a session.
"""

from collections import defaultdict

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Sessions with the same slot are written together, with the slot as a plain number."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        groups = defaultdict(list)  # slot -> [(row, info)]
        rest = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.owners > 1 or info.length >= self.kv.block_size:
                rest.append(b)
            else:
                groups[info.length].append((b, info))
        for slot, members in groups.items():
            self._store(layer_idx, slot, members, key_new, value_new)
        for b in rest:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def _store(self, layer_idx, slot, members, key_new, value_new):
        rows, blocks = index_tensor([[b for b, _ in members], [i.block_index for _, i in members]], self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slot] = key_new.index_select(0, rows)
        self.kv.v_layers[layer_idx][blocks, :, slot] = value_new.index_select(0, rows)
        for _, info in members:
            info.length += 1
