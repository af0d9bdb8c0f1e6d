"""lesson: 036
verdict: wrong
cause: not-own-work
shows: cpu
Builds the course's own part and calls it.
"""

from collections.abc import Sequence

import torch

import rosecourse as rc
from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Adds a range of its own around the rows."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.range = range_for(kv.device, config.nvtx)
        self.rows = rc.lesson("036").after.block_tables(model, kv, config)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        with self.range("my_block_tables"):
            return self.rows(sessions)
