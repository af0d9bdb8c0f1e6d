"""lesson: 038
verdict: wrong
cause: cow-missed
shows: cpu
Only asks whether the last block is full. Two siblings write the same slot of the block that they share.
"""

import torch


class MyKVAppend:
    def __init__(self, m, kv, c):
        self.kv, self.S = kv, kv.block_size

    def __call__(self, sessions, keys, values):
        for i in range(self.kv.num_layers):
            self.f(i, [s.block_ids_per_layer[i] for s in sessions], keys[i], values[i])

    def f(self, i, t, k, v):
        q = [(b, self.kv.info(x[-1])) for b, x in enumerate(t) if x and self.kv.info(x[-1]).length < self.S]
        if q:
            r = torch.tensor([[b, n.block_index, n.length] for b, n in q], device=self.kv.device)
            for c, x in (self.kv.k_layers[i], k), (self.kv.v_layers[i], v):
                c[r[:, 1], :, r[:, 2]] = x[r[:, 0]]
        done = {b for b, _ in q}
        for n in {id(n): n for _, n in q}.values():
            n.length += 1
        for b in range(len(t)):
            if b not in done:
                self.kv.append_token(i, t[b], k[b], v[b])
