"""lesson: 038
verdict: right
cause: right
shows: cpu
A terse part in NumPy: the batch as a table of four columns, a mask for the simple rows, one upload of three columns, two stores through a transposed view.
The others go to append_token.
"""
import numpy as np

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv, self.S = kv, kv.block_size
        self.KV = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in zip(kv.k_layers, kv.v_layers)]

    def __call__(self, sessions, keys, values):
        for i, kv in enumerate(zip(keys, values)):
            self.append_token_batch(i, [s.block_ids_per_layer[i] for s in sessions], *kv)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        I = [self.kv.info(x[-1]) if x else None for x in block_ids_list]
        t = np.array([(b, i.block_index, i.length, i.owners) if i else (b, 0, self.S, 0) for b, i in enumerate(I)])
        ok = (t[:, 2] < self.S) & (t[:, 3] == 1)
        if ok.any():
            r, n, p = index_tensor(t[ok, :3].T.tolist(), self.kv.device)
            for c, x in zip(self.KV[layer_idx], (key_new, value_new)):
                c[n, p] = x[r]  # [n, H, D]
            for b in t[ok, 0]:
                I[b].length += 1
        for b in t[~ok, 0].tolist():
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
