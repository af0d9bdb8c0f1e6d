"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: gpu
Two pinned buffers in turns, without an event: a host that is two steps ahead writes into one that the device
has yet to read.
"""

import itertools
from collections.abc import Callable, Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class DoubleBuffer:
    """While the device reads one buffer the host fills the other, so nobody ever waits."""

    def __init__(self, size: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.hosts = itertools.cycle([torch.zeros(size, dtype=torch.int32, pin_memory=cuda) for _ in range(2)])
        self.target = torch.zeros(size, dtype=torch.int32, device=device)

    def upload(self, shape: tuple[int, int, int], fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        n = shape[0] * shape[1] * shape[2]
        host = next(self.hosts)[:n]
        fill(host.view(shape))
        self.target[:n].copy_(host, non_blocking=True)
        return self.target[:n].view(shape)


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.width = config.max_blocks
        self.buffers = DoubleBuffer(kv.num_layers * config.max_batch_size * self.width, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        def fill(out: torch.Tensor) -> None:
            for lay in range(self.kv.num_layers):
                for b, session in enumerate(sessions):
                    out[lay, b] = self.row(session.block_ids_per_layer, lay)

        return self.buffers.upload((self.kv.num_layers, len(sessions), self.width), fill)

    def row(self, table: BlockTable, lay: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = {}
        ids = table[lay]
        n, last, row = table.row_cache.get(lay) or (0, None, torch.zeros(self.width, dtype=torch.int32))
        if ids and (n, last) != (len(ids), ids[-1]):
            k = max(n - 1, 0)
            row.numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
        table.row_cache[lay] = (len(ids), ids[-1] if ids else None, row)
        return row
