"""lesson: 036
verdict: wrong
cause: tampering
shows: cpu
Replaces `KVBlockManager.allocate_block`, for every engine of the process, by a function that counts calls, in order to
know whether anything can have changed. The tables are right; the course's cache is no longer its own.
"""

from typing import NamedTuple

import torch

from rosecourse import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer

_allocate = KVBlockManager.allocate_block
_epochs: dict[tuple[int, int], int] = {}


def _counted(self, layer_idx, start=0):
    _epochs[id(self), layer_idx] = _epochs.get((id(self), layer_idx), 0) + 1
    return _allocate(self, layer_idx, start)


class Row(NamedTuple):
    tensor: torch.Tensor
    epoch: int = -1
    count: int = 0
    last: int = -1


class MyBlockTables:
    """While no block of a layer has been handed out, no list of it can have changed: not even a comparison is needed."""

    def __init__(self, model, kv: KVBlockManager, config: EngineConfig) -> None:
        KVBlockManager.allocate_block = _counted
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx, into in enumerate(host):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                    for s in sessions
                ],
                out=into,
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            zeros = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [Row(one) for one in zeros]
        kept = table.row_cache[layer_idx]
        epoch = _epochs.get((id(self.kv), layer_idx), 0)
        if kept.epoch != epoch:
            ids = table[layer_idx]
            if (kept.count, kept.last) != (len(ids), ids[-1] if ids else -1):
                begin = max(kept.count - 1, 0)
                kept.tensor.numpy()[begin : len(ids)] = [i - offset for i in ids[begin:]]
            table.row_cache[layer_idx] = Row(kept.tensor, epoch, len(ids), ids[-1] if ids else -1)
        return kept.tensor
