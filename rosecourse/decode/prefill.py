"""Part `prefill`: the prompts of a batch, in one flat row; their K and V go straight into the sessions' blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config import EngineConfig
from ..kv.pool import KVPool
from ..models.shape import Model
from ..request.session import InferenceSession
from .graphs import CUDAGraphs
from .prompt_attention import AttentionOfAll, prompt_attention_for
from .prompt_graphs import PromptGraph, prompt_graphs
from .prompt_pads import Pads, pads_for
from .prompt_tokens import PromptTokens, Tokens


class Prefill:
    """The host does not wait for any of it, and no library makes plans: whatever the prompts, the shapes are few.

    One attention serves prompts of all lengths. On a GPU pads fill the row up, and a short one is one replay.
    """

    def __init__(self, model: Model, kv: KVPool, config: EngineConfig) -> None:
        self.model, self.kv = model, kv
        self.attention = prompt_attention_for(model, kv)
        self.pads = pads_for(model, kv)
        self.graphs = self.graphs_of(config)  # by their number of rows

    def graphs_of(self, config: EngineConfig) -> dict[int, PromptGraph]:
        """Graphs of short prefills, where all of them can be alike."""
        alike = isinstance(self.attention, AttentionOfAll) and isinstance(self.pads, Pads)
        return prompt_graphs(self.compute, self.kv, config, CUDAGraphs()) if alike else {}

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Logits [B, vocab_size] for the token after each session's last."""
        num_tokens = sum(len(session.token_ids) - session.num_cached_tokens for session in sessions)
        tokens = PromptTokens(self.kv, [*sessions, *self.pads(num_tokens)])
        graph = self.graphs.get(len(tokens.token_ids))
        if graph is None or any(cached for cached, _ in tokens.lengths):
            return self.compute(tokens, tokens.last_rows[: len(sessions)])
        return graph(tokens, len(sessions))

    def compute(self, tokens: Tokens, rows: torch.Tensor) -> torch.Tensor:
        """Logits [number of rows, vocab_size] for the token after each of these rows of the tokens."""
        attention = self.attention.plan(tokens)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.kv.write_tokens(layer_idx, tokens.blocks[layer_idx], tokens.slots, k, v)
            return attention(layer_idx, q, k, v)

        hidden = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(hidden[rows])
