"""The prompt tokens of a batch in one flat row, and where their K and V go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor

from ..kv.buffers import index_tensor
from ..request.session import InferenceSession
from .prompt_pads import Pad


class Tokens(Protocol):
    """What a prefill has to know of its N tokens and of the sequences that they are of."""

    lengths: list[tuple[int, int]]
    token_ids: Tensor
    positions: Tensor
    last_rows: Tensor
    tables: Tensor
    blocks: Tensor
    slots: Tensor


class PromptTokens:
    """N tokens to compute, of B sessions. The first `num_cached_tokens` of each (a prefix hit) are not among them.

    lengths: for each session, tokens that the cache has and tokens to compute. Their index tensors go to the device
    without waiting, as those of the decode step do.
    """

    def __init__(self, kv: Any, sessions: Sequence[InferenceSession | Pad]) -> None:
        self.lengths = [(s.num_cached_tokens, len(s.token_ids) - s.num_cached_tokens) for s in sessions]
        token_ids = [t for s in sessions for t in s.token_ids[s.num_cached_tokens :]]
        positions = [p for cached, new in self.lengths for p in range(cached, cached + new)]
        session_of = [b for b, (_, new) in enumerate(self.lengths) for _ in range(new)]
        per_token = index_tensor([token_ids, positions, session_of], kv.device)  # [3, N]
        self.token_ids, self.positions, session_of_token = per_token.unbind()
        ends = accumulate(new for _, new in self.lengths)
        self.last_rows = index_tensor([end - 1 for end in ends], kv.device)  # [B], each session's last token
        self.tables = kv.block_indices([session.table for session in sessions])  # [L, B, blocks]
        # Where the K and V of each token go: a block [L, N], and a slot in it [N].
        self.blocks = self.tables[:, session_of_token, self.positions // kv.block_size]
        self.slots = self.positions % kv.block_size
