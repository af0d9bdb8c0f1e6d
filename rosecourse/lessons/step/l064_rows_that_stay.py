"""The decode step of lesson 064: plan on the host, run on the device, read.

    copies = kv.place(tables)             a block for each session's next slot, copy-on-write
    copy_blocks(copies)
    inputs = plan(sessions)               who sits in which row; uploads only what has changed
    forward(inputs, kv_append(inputs))    logits; each layer appends its K and V by the tables
    choose(sessions, logits)              tokens, which stay on the device as the next step's inputs

The device's part is a function of tensors that stay where they are. (The loop of plan, run and read is that of
nano-vllm and mini-sglang.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...decode.parts import CopyBlocks, DecodeParts, ForwardWithAppend, KVAppendByTable
from ...decode.ranges import range_for
from ...decode.sampling import NO_TOKEN, asked_of, next_tokens
from ...errors import LogitsError
from ...kv.bookkeeping import bookkeeping
from ...kv.one_table import BlockTable, Copy, KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession
from ..rows.l064_rows import Rows


class DecodeStep:
    """Place, copy, plan, forward with append.

    The engine calls it inside `bookkeeping`: only the forward, which changes no books, can be interrupted. A block that
    was placed before that stays the session's, and the next step writes into it.
    """

    stages: tuple[str, ...] = ("place", "copy_blocks", "plan", "forward")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.copy_blocks: CopyBlocks = parts.build("copy_blocks", model, kv, config)
        self.kv_append: KVAppendByTable = parts.build("kv_append", model, kv, config)
        self.forward: ForwardWithAppend = parts.build("forward", model, kv, config)
        self.rows: Rows = parts.build("rows", model, kv, config)
        self.place, self.plan = kv.place, self.rows.plan
        self.range = range_for(kv.device, config.nvtx)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        tables: list[BlockTable] = [session.table for session in sessions]
        with self.range("roseinfer.decode_step_sessions.place"):
            copies: list[Copy] = self.place(tables)
            self.copy_blocks(copies)
        try:
            with self.range("roseinfer.decode_step_sessions.plan"):
                inputs = self.plan(sessions)
            with self.range("roseinfer.model.forward"):
                logits = bookkeeping.interruptible(self.forward, inputs, self.kv_append(inputs))
            self.rows.advance()
        except BaseException:
            self.rows.forget()  # nobody knows how far it came
            raise
        for session, table in zip(sessions, tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        return logits

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step."""
        in_rows = self.rows.holds(sessions)
        chosen = next_tokens(logits, self.rows.asked() if in_rows else asked_of(sessions, logits.device))
        token_ids = chosen.tolist()  # waits for the device
        if NO_TOKEN in token_ids:
            raise LogitsError([row for row, token_id in enumerate(token_ids) if token_id == NO_TOKEN])
        if in_rows:
            self.rows.take(chosen, token_ids)
        return token_ids
