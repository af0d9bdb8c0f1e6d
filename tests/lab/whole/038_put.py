# right
import torch


class MyKVAppend:
    def __init__(self, m, kv, c):
        self.kv = kv
        x = kv.k_layers[0]
        self.n, self.h, self.s, self.d = x.stride()
        self.hd = (torch.arange(x.shape[1])[:, None] * self.h + torch.arange(x.shape[3])).to(x.device)

    def ok(self, t):
        i = self.kv.info(t[-1]) if t else None
        return i if i and i.owners < 2 and (i.length < self.kv.block_size) else None

    def __call__(self, sessions, keys, values):
        for j, (k, v) in enumerate(zip(keys, values, strict=True)):
            t = [s.block_ids_per_layer[j] for s in sessions]
            f = {b: i for b, i in enumerate(map(self.ok, t)) if i}
            if f:
                o, r = torch.tensor([[i.block_index * self.n + i.length * self.s, b] for b, i in f.items()]).T
                o, r = (o.to(self.kv.device), r.to(self.kv.device))
                p = o[:, None, None] + self.hd
                self.kv.k_layers[j].put_(p, k[r])
                self.kv.v_layers[j].put_(p, v[r])
            for i in f.values():
                i.length += 1
            for b in range(len(t)):
                b in f or self.kv.append_token(j, t[b], k[b], v[b])
