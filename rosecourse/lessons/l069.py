"""Fewer kernels: attention appends K and V itself."""

from __future__ import annotations

import torch

from ..config import EngineConfig
from ..decode.forward import attend_for
from ..decode.inputs import DecodeInputs
from ..decode.parts import Append
from ..kernels import AppendingAttention
from ..kv.blocks import KVBlockManager
from ..models.shape import Model


class DecodeForward:
    """On a GPU attention writes the new K and V into the cache, too; elsewhere that is an operation of its own."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.attend = attend_for(kv, model.shape.num_heads, AppendingAttention)

    def __call__(self, inputs: DecodeInputs, append: Append) -> torch.Tensor:
        attend = self.attend(inputs, append)
        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, attend)
        return self.model.logits(hidden)
