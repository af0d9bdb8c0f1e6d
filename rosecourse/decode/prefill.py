"""Part `prefill`: the prompts of a batch, in one flat row; their K and V go straight into the sessions' blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config import EngineConfig
from ..kv.layout import CacheLayout
from ..models.shape import Model
from ..request.session import InferenceSession
from .prompt_attention import prompt_attention_for
from .prompt_pads import pads_for
from .prompt_tokens import PromptTokens


class Prefill:
    """The host does not wait for any of it, and no library makes plans: whatever the prompts, the shapes are few.

    One attention serves prompts of all lengths, and on a GPU pads fill the row up.
    """

    def __init__(self, model: Model, kv: CacheLayout, config: EngineConfig) -> None:
        self.model, self.kv = model, kv
        self.attention = prompt_attention_for(model, kv)
        self.pads = pads_for(model, kv)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Logits [B, vocab_size] for the token after each session's last."""
        num_tokens = sum(len(session.token_ids) - session.num_cached_tokens for session in sessions)
        tokens = PromptTokens(self.kv, [*sessions, *self.pads(num_tokens)])
        attention = self.attention.plan(tokens)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.kv.write_tokens(layer_idx, tokens.blocks[layer_idx], tokens.slots, k, v)
            return attention(layer_idx, q, k, v)

        hidden = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(hidden[tokens.last_rows[: len(sessions)]])
