"""lesson: 036
verdict: right
cause: right
shows: cpu
A generator for each list keeps the row in its frame and yields it whenever it is asked.
"""

from collections.abc import Iterator, Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


def row_keeper(ids: list[int], offset: int, width: int) -> Iterator[torch.Tensor]:
    """Yields the row of `ids` for ever; between two yields it mends what has changed in the list."""
    row = torch.zeros(width, dtype=torch.int32)
    done: list[int] = []
    while True:
        if ids and done and done[-1] != ids[len(done) - 1]:
            done.pop()
        while len(done) < len(ids):
            row[len(done)] = ids[len(done)] - offset
            done.append(ids[len(done)])
        yield row


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.width, self.layers, self.step = config.max_blocks, kv.num_layers, kv.num_blocks
        self.staging = StagingBuffer(self.layers * config.max_batch_size * self.width, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        out = self.staging.host(self.layers, len(sessions), self.width)
        for b, session in enumerate(sessions):
            table = session.block_ids_per_layer
            if table.row_cache is None:
                table.row_cache = [row_keeper(ids, lay * self.step, self.width) for lay, ids in enumerate(table)]
            torch.stack([next(keeper) for keeper in table.row_cache], out=out[:, b])
        return self.staging.to_device()
