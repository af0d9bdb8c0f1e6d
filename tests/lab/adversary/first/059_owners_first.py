"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
Asks for the owners before it asks whether the block is full. A full block that forks share needs no copy, but its
sessions are sent to `append_token` one by one all the same.
"""

from __future__ import annotations

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys, values) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx: int, block_ids_list, key_new, value_new) -> None:
        rows, infos, slow = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is not None and info.owners > 1:
                slow.append(b)
                continue
            if info is None:
                block_ids.append(self.kv.allocate_block(layer_idx))
            elif info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length))
            rows.append(b)
            infos.append(self.kv.info(block_ids[-1]))
        if rows:
            self.store(layer_idx, rows, infos, key_new, value_new)
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def store(self, layer_idx, rows, infos, key_new, value_new) -> None:
        numbers = [rows, [i.block_index for i in infos], [i.length for i in infos]]
        idx, blk, pos = index_tensor(numbers, self.kv.device)
        self.kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
        self.kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
        for i in infos:
            i.length += 1
