"""lesson: 036
verdict: right
cause: right
shows: cpu
One-letter names, dict of lists, torch.cat into a flat buffer.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(s, m, k, c):
        s.k, s.w = k, c.max_blocks
        s.u = StagingBuffer(k.num_layers * c.max_batch_size * s.w, torch.int32, k.device)

    def __call__(s, x):
        o = s.u.host(s.k.num_layers, len(x), s.w)
        torch.cat([s.r(q.block_ids_per_layer, i) for i in range(s.k.num_layers) for q in x], out=o.view(-1))
        return s.u.to_device()

    def r(s, t, i):
        c = t.row_cache = t.row_cache or {}
        e = c.get(i)
        if e is None:
            e = c[i] = [torch.zeros(s.w, dtype=torch.int32), 0, -1]
        if (d := t[i]) and (len(d) != e[1] or d[-1] != e[2]):
            for j in range(e[1] - (e[1] > 0), len(d)):
                e[0][j] = d[j] - i * s.k.num_blocks
            e[1], e[2] = len(d), d[-1]
        return e[0]
