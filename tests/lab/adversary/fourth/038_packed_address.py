"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
Packs block and slot into one number with six bits for the slot: right up to block size 64, from 128 on slots 64 and more are mixed into the block.
"""

import torch

from rosecourse.kv.buffers import index_tensor

SLOT_BITS = 6  # 64 tokens a block
SLOT_MASK = (1 << SLOT_BITS) - 1


class MyKVAppend:
    """One list from the host per layer: (block << 6 | slot) is taken apart on the device."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            self._layer(layer, [s.block_ids_per_layer[layer] for s in sessions], k, v)

    def _layer(self, layer, tables, k, v):
        rows, codes, written, rest = [], [], [], []
        for row, table in enumerate(tables):
            last = self.kv.info(table[-1]) if table else None
            if last is not None and last.owners == 1 and last.length != self.kv.block_size:
                rows.append(row)
                codes.append(last.block_index << SLOT_BITS | last.length)
                written.append(last)
            else:
                rest.append(row)
        if rows:
            row_t, code_t = index_tensor([rows, codes], self.kv.device)
            where = (code_t >> SLOT_BITS, slice(None), code_t & SLOT_MASK)
            self.kv.k_layers[layer][where] = torch.index_select(k, 0, row_t)
            self.kv.v_layers[layer][where] = torch.index_select(v, 0, row_t)
            for last in written:
                last.length += 1
        for row in rest:
            self.kv.append_token(layer, tables[row], k[row], v[row])
