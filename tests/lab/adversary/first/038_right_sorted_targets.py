"""lesson: 038
verdict: right
cause: right
shows: both
Sorts the targets by block, and the rows with them; a NumPy record array is the plan, and `index_put_` does the store
with three broadcast indices, heads included.
"""

import numpy as np
import torch

PLAN = np.dtype([("block", np.int64), ("slot", np.int64), ("row", np.int64)])


def make_plan(kv, tables):
    """The simple rows as a record array in the order of their blocks, and the numbers of the others."""
    simple, others = [], []
    for row, table in enumerate(tables):
        last = kv.info(table[-1]) if table else None
        if last is not None and last.owners == 1 and last.length < kv.block_size:
            simple.append((last.block_index, last.length, row))
        else:
            others.append(row)
    return np.sort(np.array(simple, dtype=PLAN), order="block"), others


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.heads = torch.arange(kv.k_layers[0].shape[1], device=kv.device)[None]

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            plan, others = make_plan(self.kv, tables)
            if plan.size:
                numbers = np.stack([plan["block"], plan["slot"], plan["row"]])
                block, slot, row = torch.from_numpy(numbers).to(self.kv.device).unsqueeze(-1)
                where = (block, self.heads, slot)
                torch.index_put_(self.kv.k_layers[layer], where, keys[layer][row, self.heads])
                torch.index_put_(self.kv.v_layers[layer], where, values[layer][row, self.heads])
            for row in plan["row"].tolist():
                self.kv.info(tables[row][-1]).length += 1
            for row in others:
                self.kv.append_token(layer, tables[row], keys[layer][row], values[layer][row])
