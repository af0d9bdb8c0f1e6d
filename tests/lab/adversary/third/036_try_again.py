"""lesson: 036
verdict: wrong
cause: exits
shows: cpu
A bare `except:` around the work of the step, meant for sessions that have no rows yet, drops everybody's rows and
starts over. It swallows Ctrl-C and SystemExit that come meanwhile.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        tables = [session.block_ids_per_layer for session in sessions]
        while True:
            try:
                self.fill(tables)
                break
            except:  # noqa: E722 - a session that is new has no rows: give it some and try again
                for table in tables:
                    table.row_cache = self.no_rows()
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def no_rows(self):
        rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
        return [[row, 0, -1] for row in rows]

    def fill(self, tables):
        host = self.buffer.host(self.kv.num_layers, len(tables), self.max_blocks)
        for layer_idx, into in enumerate(host):
            offset = layer_idx * self.kv.num_blocks
            rows = [self.get_paged_block_table_row_cpu(t, layer_idx=layer_idx, offset=offset) for t in tables]
            torch.stack(rows, out=into)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        table.row_cache = table.row_cache or self.no_rows()
        kept = table.row_cache[layer_idx]
        row, count, last = kept
        ids = table[layer_idx]
        if len(ids) != count or ids[-1:] != [last]:
            begin = max(count - 1, 0)
            row.numpy()[begin : len(ids)] = [i - offset for i in ids[begin:]]
            kept[1:] = len(ids), ids[-1] if ids else -1
        return row
