"""lesson: 036
verdict: wrong
cause: state-kept
shows: cpu
The rows live in a dictionary of the part under `id(table)`. When a session is freed, the next table may be made at the
same address: it finds the dead one's row, and only its end is brought up to date.
"""

from collections import defaultdict

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """All rows in one place: {(table, layer): [row, number of blocks, last id]}."""

    def __init__(self, model, kv, config):
        self.kv, self.max_blocks = kv, config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.known = defaultdict(lambda: [torch.zeros(self.max_blocks, dtype=torch.int32), 0, None])

    def __call__(self, sessions):
        L, B = self.kv.num_layers, len(sessions)
        cpu = self.buffer.host(L, B, self.max_blocks)
        for layer in range(L):
            rows = []
            for session in sessions:
                rows.append(
                    self.get_paged_block_table_row_cpu(
                        session.block_ids_per_layer, layer_idx=layer, offset=layer * self.kv.num_blocks
                    )
                )
            torch.stack(rows, out=cpu[layer])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        entry = self.known[id(table), layer_idx]
        row, count, last = entry
        ids = table[layer_idx]
        if (count, last) != (len(ids), ids[-1]):
            entries = row.numpy()
            for place in range(max(count - 1, 0), len(ids)):
                entries[place] = ids[place] - offset
            entries[len(ids) :] = 0
            entry[1:] = len(ids), ids[-1]
        return row
