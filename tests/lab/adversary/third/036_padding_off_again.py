"""lesson: 036
verdict: wrong
cause: inputs-changed
shows: cpu
Pads the session's own list up to the full width and takes the padding off again with `del ids[-pad:]`. When a session
has come to its last block there is no padding: `del ids[-0:]` empties the list.
"""

import numpy as np
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
        tables = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            first_id = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=first_id)
                    for s in sessions
                ],
                out=tables[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [
                {"row": torch.zeros(self.max_blocks, dtype=torch.int32), "seen": (0, None)}
                for _ in range(self.kv.num_layers)
            ]
        kept = table.row_cache[layer_idx]
        ids = table[layer_idx]
        seen = len(ids), ids[-1]
        if seen != kept["seen"]:
            since = max(kept["seen"][0] - 1, 0)
            pad = self.max_blocks - len(ids)
            ids += [offset] * pad  # becomes 0 below
            kept["row"].numpy()[since:] = np.subtract(ids[since:], offset)
            del ids[-pad:]
            kept["seen"] = seen
        return kept["row"]
