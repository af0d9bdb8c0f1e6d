# wrong, which a CPU can show
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
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx, lines in enumerate(host.unbind()):
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                for session in sessions
            ]
            torch.stack(rows, out=lines)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [
                {"row": torch.zeros(self.max_blocks, dtype=torch.int32), "shown": set(), "last": None}
                for _ in range(self.kv.num_layers)
            ]
        kept, ids = (table.row_cache[layer_idx], table[layer_idx])
        row, shown = (kept["row"], kept["shown"])
        if len(ids) == len(shown) and ids[-1] == kept["last"]:
            return row
        if len(ids) == len(shown):
            shown.discard(kept["last"])
        fresh = sorted(set(ids) - shown)
        for place, block_id in enumerate(fresh, start=len(shown)):
            row[place] = block_id - offset
        shown.update(fresh)
        kept["last"] = ids[-1]
        return row
