"""lesson: 036
verdict: right
cause: right
shows: both
Three pinned buffers of its own, each with an event that is waited for before the buffer is written again.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class Ring:
    """Pinned buffers in turns; `next` waits until the copy out of the one that it gives is through."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, depth: int = 3) -> None:
        cuda = device.type == "cuda"
        self.slots = [
            (torch.zeros(shape, dtype=torch.int32, pin_memory=cuda), torch.cuda.Event() if cuda else None)
            for _ in range(depth)
        ]
        self.turn = 0

    def next(self) -> tuple[torch.Tensor, "torch.cuda.Event | None"]:
        self.turn = (self.turn + 1) % len(self.slots)
        host, copied = self.slots[self.turn]
        if copied is not None:
            copied.synchronize()
        return host, copied


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.range = range_for(kv.device, config.nvtx)
        self.width = config.max_blocks
        self.ring = Ring((kv.num_layers * config.max_batch_size * self.width,), kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        shape = (self.kv.num_layers, len(sessions), self.width)
        flat, copied = self.ring.next()
        flat = flat[: shape[0] * shape[1] * shape[2]]
        rows = [self.row(session.block_ids_per_layer, lay) for lay in range(shape[0]) for session in sessions]
        torch.stack(rows, out=flat.view(-1, self.width))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            if copied is None:
                return flat.view(shape).clone()
            on_device = flat.to(self.kv.device, non_blocking=True).view(shape)
            copied.record()
            return on_device

    def row(self, table: BlockTable, lay: int) -> torch.Tensor:
        table.row_cache = table.row_cache or [
            (row, []) for row in torch.zeros(self.kv.num_layers, self.width, dtype=torch.int32).unbind()
        ]
        row, shown = table.row_cache[lay]
        ids = table[lay]
        if len(shown) != len(ids) or shown[-1:] != ids[-1:]:
            del shown[-1:]
            start = len(shown)
            shown.extend(ids[start:])
            row.numpy()[start : len(ids)] = [i - lay * self.kv.num_blocks for i in shown[start:]]
        return row
