# wrong, which no CPU can show
import torch

from rosecourse.decode.step import range_for


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        size = kv.num_layers * config.max_batch_size * self.max_blocks
        on_gpu = kv.device.type == "cuda"
        self.staged = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.there = torch.zeros(size, dtype=torch.int32, device=kv.device)

    def __call__(self, sessions):
        shape = (self.kv.num_layers, len(sessions), self.max_blocks)
        size = shape[0] * shape[1] * shape[2]
        lines = self.staged[:size].view(shape)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                    for session in sessions
                ],
                out=lines[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            there = self.there[:size]
            there.copy_(self.staged[:size], non_blocking=True)
            return there.view(shape)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [[row, 0, -1] for row in rows]
        kept = table.row_cache[layer_idx]
        row, count, last = kept
        ids = table[layer_idx]
        if len(ids) != count or ids[-1] != last:
            start = max(count - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            kept[1:] = (len(ids), ids[-1])
        return row
