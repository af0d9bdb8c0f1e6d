"""lesson: 036
verdict: wrong
cause: wrong-layer
shows: cpu
One function a layer is prepared in a loop, but a lambda looks its loop variable up when it is called: all of them give
the row of the last layer. It shows only where the layers' blocks lie at different indices.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv, self.max_blocks = kv, config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        # no multiplications and keyword arguments in the step
        self.row_makers = []
        for layer in range(kv.num_layers):
            offset = layer * kv.num_blocks
            self.row_makers.append(
                lambda table: self.get_paged_block_table_row_cpu(table, layer_idx=layer, offset=offset)
            )

    def __call__(self, sessions):
        tables = [session.block_ids_per_layer for session in sessions]
        out = self.buffer.host(len(self.row_makers), len(tables), self.max_blocks)
        for make_row, rows in zip(self.row_makers, out):
            torch.stack([make_row(table) for table in tables], out=rows)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        if table.row_cache[layer_idx] is None:
            table.row_cache[layer_idx] = {"row": torch.zeros(self.max_blocks, dtype=torch.int32), "n": 0, "last": None}
        kept, ids = table.row_cache[layer_idx], table[layer_idx]
        if ids and (kept["n"], kept["last"]) != (len(ids), ids[-1]):
            begin = max(kept["n"] - 1, 0)
            kept["row"].numpy()[begin : len(ids)] = [x - offset for x in ids[begin:]]
            kept["n"], kept["last"] = len(ids), ids[-1]
        return kept["row"]
