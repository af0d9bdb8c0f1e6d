"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
To learn whether a row has changed, the whole row is built from the list at every step, as an `array`, and compared with
the one that was kept. The tables are right, but each id of each session is still copied and packed in every step.
"""

from array import array

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


def pack(ids, offset, width):
    row = array("i", [block_id - offset for block_id in ids])
    row.extend([0] * (width - len(ids)))
    return row


class MyBlockTables:
    """A row is made a tensor again only when it is not what it was."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            for b, session in enumerate(sessions):
                row = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                out[layer_idx, b].copy_(row)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [(None, None)] * self.kv.num_layers
        packed, tensor = table.row_cache[layer_idx]
        now = pack(table[layer_idx], offset, self.max_blocks)
        if now != packed:
            tensor = torch.frombuffer(now, dtype=torch.int32)  # shares the array's memory: nothing is copied twice
            table.row_cache[layer_idx] = (now, tensor)
        return tensor
