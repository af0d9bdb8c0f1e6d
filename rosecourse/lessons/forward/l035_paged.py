"""Part `forward`: the model over one token per session, with paged attention."""

from __future__ import annotations

import torch

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs, DecodeOutputs
from ...kernels import paged_attention_for
from ...kv.blocks import KVBlockManager
from ...models.shape import Model


class DecodeForward:
    """K and V are read where they lie, through the block tables."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.paged_attention = paged_attention_for(kv, model.shape.num_heads)

    def __call__(self, inputs: DecodeInputs) -> DecodeOutputs:
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        self.paged_attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys.append(k)
            values.append(v)
            return self.paged_attention.run(layer_idx, q, k, v)

        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, attend)
        return DecodeOutputs(self.model.logits(hidden), keys, values)
