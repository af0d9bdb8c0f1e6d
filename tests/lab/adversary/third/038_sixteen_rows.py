"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
The lists for the store have room for 16 rows, the default max_batch_size; of batches of 17 and more the rest is dropped.
"""

import numpy as np
import torch

MAX_BATCH = 16


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        # rows, blocks and slots of one layer, filled anew each time: no lists grow in the hot loop
        self.plan = np.zeros((3, MAX_BATCH), dtype=np.int64)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], keys[layer_idx], values[layer_idx]
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast, slow = [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            simple = info is not None and info.length < self.kv.block_size and info.owners == 1
            (fast if simple else slow).append((b, info))
        for column, (b, info) in zip(self.plan.T, fast):
            column[:] = b, info.block_index, info.length
        n = len(fast)
        if n:
            rows, blocks, slots = torch.tensor(self.plan[:, :n].tolist(), device=self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
        for _, info in fast:
            info.length += 1
        for b, _ in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
