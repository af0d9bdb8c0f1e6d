"""lesson: 059
verdict: wrong
cause: books-wrong
shows: cpu
Keeps a few spare blocks of each layer at hand, to make a rollover cheap. The spare ones count as in use and belong to
nobody, and a nearly full pool lacks them.
"""

from collections import deque

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    SPARE = 2

    def __init__(self, model, kv, config):
        self.kv = kv
        self.spare = [deque() for _ in range(kv.num_layers)]

    def take(self, layer, start):
        spare = self.spare[layer]
        while len(spare) < self.SPARE and self.kv.num_available(layer):
            spare.append(self.kv.allocate_block(layer))
        block_id = spare.popleft() if spare else self.kv.allocate_block(layer)
        self.kv.info(block_id).start = start
        return block_id

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, infos, slow = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.take(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                fast.append(b)
                infos.append(info)
        if fast:
            idx, blk, pos = index_tensor(
                [fast, [i.block_index for i in infos], [i.length for i in infos]], self.kv.device
            )
            self.kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
            self.kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
            for i in infos:
                i.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
