"""lesson: 036
verdict: wrong
cause: wrong-session
shows: cpu
Rows are kept by the place in the batch; when another session moves into a place, only the end of the row is its own.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """The buffer of the step is never thrown away: row b of it belongs to the b-th session."""

    def __init__(self, model, kv, config):
        self.kv, self.max_blocks = kv, config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        places = kv.num_layers, config.max_batch_size
        self.kept = torch.zeros(*places, self.max_blocks, dtype=torch.int32)
        self.signatures = [[(0, -1)] * places[1] for _ in range(places[0])]

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            for self.place, session in enumerate(sessions):
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
        host.copy_(self.kept[:, : len(sessions)])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        ids = table[layer_idx]
        row = self.kept[layer_idx, self.place]
        length, last = self.signatures[layer_idx][self.place]
        signature = (len(ids), ids[-1] if ids else -1)
        if signature != (length, last):
            since = max(min(length, len(ids)) - 1, 0)
            row.numpy()[since : len(ids)] = [i - offset for i in ids[since:]]
            row[len(ids) :] = 0
            self.signatures[layer_idx][self.place] = signature
        return row
