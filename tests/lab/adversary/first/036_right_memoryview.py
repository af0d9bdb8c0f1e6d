"""lesson: 036
verdict: right
cause: right
shows: cpu
Rows are slices of one bytearray a table, seen through memoryviews and copied by slice assignment.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable


class Rows:
    def __init__(self, layers: int, width: int) -> None:
        self.cells = memoryview(bytearray(4 * layers * width)).cast("i")
        self.width = width
        self.signatures: list[tuple[int, int]] = [(0, -1)] * layers

    def sync(self, table: BlockTable, num_blocks: int) -> memoryview:
        for lay, ids in enumerate(table):
            signature = (len(ids), ids[-1] if ids else -1)
            if signature == self.signatures[lay]:
                continue
            for slot in range(max(0, self.signatures[lay][0] - 1), len(ids)):
                self.cells[lay * self.width + slot] = ids[slot] - lay * num_blocks
            self.signatures[lay] = signature
        return self.cells


class MyBlockTables:
    """Plain Python memory, no tensor but the staging buffer."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        layers, batch, width = self.kv.num_layers, len(sessions), self.max_blocks
        out = memoryview(self.buffer.host(layers * batch * width).numpy()).cast("b").cast("i")
        for b, session in enumerate(sessions):
            table = session.block_ids_per_layer
            table.row_cache = table.row_cache or Rows(layers, width)
            cells = table.row_cache.sync(table, self.kv.num_blocks)
            for lay in range(layers):
                at = (lay * batch + b) * width
                out[at : at + width] = cells[lay * width : (lay + 1) * width]
        return self.buffer.to_device().view(layers, batch, width)
