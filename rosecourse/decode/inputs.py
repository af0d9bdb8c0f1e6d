"""What goes into the forward of a decode step, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..request.session import InferenceSession


@dataclass(frozen=True)
class DecodeInputs:
    """What the forward of one decode step reads; B sessions, L layers. Token ids and lengths are contiguous."""

    token_ids: Tensor  # int64 [B], each session's last token
    context_lens: Tensor  # int64 [B], tokens in the cache, which is also the position of the last token
    max_context_len: int
    block_tables: Tensor  # int32 [L, B, max_blocks], physical block of each logical block
    sessions: Sequence[InferenceSession]


@dataclass(frozen=True)
class DecodeOutputs:
    """What the forward of one decode step gives."""

    logits: Tensor  # [B, vocab_size]
    keys: list[Tensor]  # L times [B, H, D], the K of each session's last token
    values: list[Tensor]
