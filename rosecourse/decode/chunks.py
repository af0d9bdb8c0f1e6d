"""Steps over the sessions that decode and over chunks of prompts together, so that nobody waits for a whole prompt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from torch import Tensor

from ..kv.blocks import BlockTable, KVBlockManager
from ..kv.buffers import index_tensor
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession
from .inputs import Batch
from .prefill import Pad, Prefill, PromptTokens
from .rows import TOKEN
from .step import DecodeStep


class MixedStep:
    """One more token of each session that decodes, and a chunk of each prompt, as one prefill of ragged lengths.

    A session that decodes is a prompt with one token to compute. Its last token may be on the device alone, one step
    behind: then it is read there. The rows do not know of such a step; the next decode step writes them again.
    """

    def __init__(self, kv: KVBlockManager, step: DecodeStep, prefill: Prefill) -> None:
        self.kv, self.step, self.prefill = kv, step, prefill

    def __call__(self, decoding: Batch, chunks: Mapping[InferenceSession, int]) -> Tensor:
        """Logits [B + C, vocab_size] for the token after the last one that is computed of each, who decodes first.

        chunks: prompts whose blocks are reserved, each with its number of tokens. Raises `KVCacheExhausted` before
        anything has changed.
        """
        self.step.copy_blocks(self.step.place(decoding.tables))
        logits = bookkeeping.interruptible(self._compute, decoding, chunks)
        self.step.rows.forget()
        for session, table in zip(decoding.sessions, decoding.tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        for session, size in chunks.items():
            session.num_cached_tokens += size
        return logits

    def _compute(self, decoding: Batch, chunks: Mapping[InferenceSession, int]) -> Tensor:
        sizes = dict.fromkeys(decoding.sessions, 1) | dict(chunks)
        pads = self.prefill.pads(sum(sizes.values()))
        tokens = PromptTokens(self.kv, [*itertools.starmap(chunk_of, sizes.items()), *pads])
        unknown = [row for row, session in enumerate(decoding.sessions) if session.num_missing_tokens == 0]
        if unknown:  # a step in flight is making their last tokens
            rows = index_tensor(unknown, self.kv.device)
            tokens.token_ids[rows] = self._last_tokens([decoding.tables[row] for row in unknown])
        return self.prefill.logits_of(tokens, len(sizes))

    def _last_tokens(self, tables: list[BlockTable]) -> Tensor:
        """int64 [B] on the device, where the newest step in flight is making them for the sessions of these tables."""
        rows = self.step.rows
        known, tokens = (rows.tables, rows.fields[TOKEN]) if rows.tables else (rows.arrived, rows.first_tokens)
        number_of = dict(zip(map(id, known), itertools.count()))
        return tokens[index_tensor([number_of[id(table)] for table in tables], self.kv.device)].clamp(min=0)


def chunk_of(session: InferenceSession, size: int) -> Pad:
    """The next `size` tokens of a session, as `PromptTokens` looks at a prompt; 0 for one that is not known yet."""
    end = session.num_cached_tokens + size
    token_ids = session.token_ids[:end]
    return Pad(token_ids + [0] * (end - len(token_ids)), session.table, session.num_cached_tokens)
