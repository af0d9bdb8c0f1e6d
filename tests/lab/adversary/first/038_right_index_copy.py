"""lesson: 038
verdict: right
cause: right
shows: both
Sees a layer as a list of heads' rows [N * H * S, D] and copies into it with `index_copy_`; NumPy works out the rows.
"""

import numpy as np
import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        _, h, s, d = kv.k_layers[0].shape
        self.h, self.s = np.arange(h), s
        self.caches = [(k.view(-1, d), v.view(-1, d)) for k, v in zip(kv.k_layers, kv.v_layers, strict=True)]

    def __call__(self, sessions, keys, values):
        for layer, news in enumerate(zip(keys, values, strict=True)):
            lists = [session.block_ids_per_layer[layer] for session in sessions]
            infos = [self.kv.info(ids[-1]) if ids else None for ids in lists]
            at = np.array(
                [
                    (b, i.block_index, i.length)
                    for b, i in enumerate(infos)
                    if i and i.owners == 1 and i.length < self.s
                ],
                dtype=np.int64,
            ).reshape(-1, 3)
            if at.size:
                self.store(self.caches[layer], news, at)
            for b in at[:, 0]:
                infos[b].length += 1
            for b in np.setdiff1d(np.arange(len(lists)), at[:, 0]):
                self.kv.append_token(layer, lists[b], *(new[b] for new in news))

    def store(self, caches, news, at):
        batch, block, slot = at.T[:, :, None]
        rows = (block * len(self.h) + self.h) * self.s + slot
        host = torch.from_numpy(np.concatenate([rows.ravel(), batch.ravel()]))
        rows_t, batch_t = host.to(self.kv.device).split([rows.size, batch.size])
        for cache, new in zip(caches, news, strict=True):
            cache.index_copy_(0, rows_t, new.index_select(0, batch_t).flatten(0, 1))
