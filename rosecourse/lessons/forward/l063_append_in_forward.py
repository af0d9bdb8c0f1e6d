"""Part `forward`, of lessons 063 to 068: K and V are written by a kernel of their own."""

from __future__ import annotations

import torch

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs
from ...decode.parts import Append
from ...kernels import paged_attention_for
from ...kv.one_table import KVBlockManager
from ...models.shape import Model


class DecodeForward:
    """K and V are written where they belong as soon as a layer has made them, and read where they lie."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.paged_attention = paged_attention_for(kv, model.shape.num_heads)

    def __call__(self, inputs: DecodeInputs, append: Append) -> torch.Tensor:
        self.paged_attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            append(layer_idx, k, v)
            return self.paged_attention.run(layer_idx, q, k, v)

        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, attend)
        return self.model.logits(hidden)
