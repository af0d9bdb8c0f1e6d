# right
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


def keeper(width):
    row, seen = (torch.zeros(width, dtype=torch.int32), (0, None))
    window = row.numpy()

    def shown(ids, offset):
        nonlocal seen
        now = (len(ids), ids[-1] if ids else None)
        if now != seen:
            lo = max(seen[0] - 1, 0)
            window[lo : now[0]] = [i - offset for i in ids[lo:]]
            seen = now
        return row

    return shown


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv, self.max_blocks = (kv, config.max_blocks)
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        n, row_of = (self.kv.num_blocks, self.get_paged_block_table_row_cpu)
        for layer_idx, lines in enumerate(self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)):
            for line, session in zip(lines, sessions, strict=True):
                line.copy_(row_of(session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * n))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        table.row_cache = table.row_cache or [keeper(self.max_blocks) for _ in table]
        return table.row_cache[layer_idx](table[layer_idx], offset)
