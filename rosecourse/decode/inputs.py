"""What goes into the forward of a decode step, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from ..kv.blocks import BlockTable
from ..request.session import InferenceSession


@dataclass(eq=False)
class Batch:
    """All that a step knows: the session of each row, and the table that it had when the batch was made.

    user: a weak reference to the scheduler whose step it is, or None. pending: where its tokens come to be.
    """

    sessions: list[InferenceSession]
    tables: list[BlockTable]
    user: Any = None
    pending: Any = None

    @classmethod
    def of(cls, sessions: Sequence[InferenceSession], user: Any = None) -> Batch:
        return cls(list(sessions), [session.table for session in sessions], user)

    def __len__(self) -> int:
        return len(self.sessions)

    @cached_property
    def members(self) -> frozenset[InferenceSession]:
        return frozenset(self.sessions)


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
    logits: Tensor  # [B, vocab_size]
    keys: list[Tensor]  # L times [B, H, D], the K of each session's last token
    values: list[Tensor]
