# right
import itertools
from dataclasses import dataclass, field

import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


@dataclass
class Mirror:
    row: np.ndarray
    ids: list[int] = field(default_factory=list)

    def update(self, ids, offset):
        if self.ids != ids:
            same = sum(
                (1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.ids, ids, strict=False)))
            )
            self.row[same : len(ids)] = np.fromiter((i - offset for i in ids[same:]), np.int32)
            self.row[len(ids) :] = 0
            self.ids[same:] = ids[same:]
        return self.row


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx, plane in enumerate(host):
            for target, session in zip(plane, sessions, strict=True):
                row = self.mirrors(session.block_ids_per_layer)[layer_idx].update(
                    session.block_ids_per_layer[layer_idx], layer_idx * self.kv.num_blocks
                )
                target.copy_(torch.from_numpy(row))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def mirrors(self, table):
        if table.row_cache is None:
            table.row_cache = [Mirror(np.zeros(self.max_blocks, np.int32)) for _ in table]
        return table.row_cache
