"""lesson: 038
verdict: wrong
cause: wrong-layer
shows: cpu
Builds one writer per layer in a loop of lambdas. They all see the loop's last layer, and write into it.
"""

import torch


def put(cache, blocks, slots, rows):
    cache[blocks, :, slots] = rows


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.put_k, self.put_v = [], []
        for k_layer, v_layer in zip(kv.k_layers, kv.v_layers, strict=True):
            self.put_k.append(lambda *where: put(k_layer, *where))  # noqa: B023
            self.put_v.append(lambda *where: put(v_layer, *where))  # noqa: B023

    def __call__(self, sessions, keys, values):
        for layer, (put_k, put_v) in enumerate(zip(self.put_k, self.put_v, strict=True)):
            fast, slow = [], []
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                info = self.kv.info(ids[-1]) if ids else None
                ok = info is not None and info.owners == 1 and info.length < self.kv.block_size
                (fast if ok else slow).append((b, ids, info))
            if fast:
                b_t, blk_t, pos_t = torch.tensor(
                    [(b, info.block_index, info.length) for b, _, info in fast], device=self.kv.device
                ).T
                put_k(blk_t, pos_t, keys[layer][b_t])
                put_v(blk_t, pos_t, values[layer][b_t])
            for _, _, info in fast:
                info.length += 1
            for b, ids, _ in slow:
                self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])
