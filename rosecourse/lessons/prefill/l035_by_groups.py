"""The prefill of lessons 035 to 067: an attention for each group of prompts that are alike in their lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...decode.prompt_attention import AttentionByGroups
from ...decode.prompt_tokens import PromptTokens
from ...kv.layout import CacheLayout
from ...models.shape import Model, query_heads_per_kv_head
from ...request.session import InferenceSession


class Prefill:
    """The host does not wait for any of it. Prompts of equal lengths share an attention."""

    def __init__(self, model: Model, kv: CacheLayout, config: EngineConfig) -> None:
        self.model, self.kv = model, kv
        heads = query_heads_per_kv_head(model.shape.num_heads, model.shape.num_kv_heads)
        self.attention = AttentionByGroups(kv, heads)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Logits [B, vocab_size] for the token after each session's last."""
        tokens = PromptTokens(self.kv, sessions)
        attention = self.attention.plan(tokens)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.kv.write_tokens(layer_idx, tokens.blocks[layer_idx], tokens.slots, k, v)
            return attention(layer_idx, q, k, v)

        hidden = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(hidden[tokens.last_rows])
