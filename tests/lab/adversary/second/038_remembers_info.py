"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
Remembers each list's last block under the list's `id` and length: a copy-on-write changes the block and not the length.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """`kv.info` is asked only when a list has grown; in between the description of its last block is remembered."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self._known = {}  # id of a block list -> (its length, the list, the description of its last block)

    def last(self, ids):
        if not ids:
            return None
        size, owner, info = self._known.get(id(ids), (0, None, None))
        if owner is not ids or size != len(ids):
            info = self.kv.info(ids[-1])
            self._known[id(ids)] = (len(ids), ids, info)
        return info

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = list(map(self.last, block_ids_list))
        fast = [b for b, i in enumerate(infos) if i and i.owners == 1 and i.length < self.kv.block_size]
        slow = sorted(set(range(len(infos))) - set(fast))
        if fast:
            idx, blk, pos = index_tensor(
                [fast, [infos[b].block_index for b in fast], [infos[b].length for b in fast]], self.kv.device
            )
            self.kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
            self.kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
            for b in fast:
                infos[b].length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
