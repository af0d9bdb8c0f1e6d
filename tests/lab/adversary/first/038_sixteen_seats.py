"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
The index buffer has 16 columns, the default batch. Of a larger batch only the first 16 simple sessions are written,
the others are counted as if they had been.
"""

import numpy as np
import torch


class MyKVAppend:
    SEATS = 16

    def __init__(self, model, kv, config):
        self.kv = kv
        self.seats = np.zeros((3, self.SEATS), dtype=np.int64)

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            plan, rest = self.plan([session.block_ids_per_layer[layer] for session in sessions])
            self.write(layer, plan, keys[layer], values[layer])
            for b in rest:
                self.kv.append_token(layer, sessions[b].block_ids_per_layer[layer], keys[layer][b], values[layer][b])

    def plan(self, tables):
        plan, rest = [], []
        for b, table in enumerate(tables):
            info = self.kv.info(table[-1]) if table else None
            if info is not None and info.owners == 1 and info.length < self.kv.block_size:
                plan.append((b, info))
            else:
                rest.append(b)
        return plan, rest

    def write(self, layer, plan, k, v):
        if not plan:
            return
        used = self.seats[:, : len(plan)]
        for column, (b, info) in zip(used.T, plan, strict=False):
            column[:] = b, info.block_index, info.length
        rows, blocks, slots = torch.from_numpy(used.copy()).to(self.kv.device)
        self.kv.k_layers[layer][blocks, :, slots] = k[rows]
        self.kv.v_layers[layer][blocks, :, slots] = v[rows]
        for _, info in plan:
            info.length += 1
