"""Slots from the table: place first, then append inside the forward, which reads each slot off the table.

copies = kv.place(tables)                 a block for each session's next slot, copy-on-write
copy_blocks(copies)
tables = block_tables(sessions)           logical block -> physical block
inputs = last token ids, context lengths  (and the tables)
forward(inputs, kv_append(inputs))        logits; each layer appends its K and V by the tables
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config import EngineConfig
from ..decode.inputs import DecodeInputs
from ..decode.parts import Append, DecodeParts
from ..decode.step import range_for
from ..kernels import paged_attention_for
from ..kv.blocks import BlockTable, Copy, KVBlockManager
from ..kv.buffers import StagingBuffer
from ..kv.guards import bookkeeping
from ..models.shape import Model
from ..request.sampling import sample
from ..request.session import InferenceSession


class DecodeStep:
    """Place, copy, block tables, inputs, forward with append.

    The engine calls it inside `bookkeeping`: only the forward, which changes no books, can be interrupted. A block that
    was placed before that stays the session's, and the next step writes into it.
    """

    stages: tuple[str, ...] = ("place", "copy_blocks", "block_tables", "forward")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.copy_blocks = parts.build("copy_blocks", model, kv, config)
        self.block_tables = parts.build("block_tables", model, kv, config)
        self.kv_append = parts.build("kv_append", model, kv, config)
        self.forward = parts.build("forward", model, kv, config)
        self.place = kv.place
        self.range = range_for(kv.device, config.nvtx)
        self.input_buffer = StagingBuffer(2 * config.max_batch_size, torch.int64, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        tables: list[BlockTable] = [session.table for session in sessions]
        with self.range("roseinfer.decode_step_sessions.place"):
            copies: list[Copy] = self.place(tables)
            self.copy_blocks(copies)
        with self.range("roseinfer.decode_step_sessions.build_block_tables"):
            block_tables = self.block_tables(sessions)
        inputs = self.inputs(sessions, block_tables)
        with self.range("roseinfer.model.forward"):
            logits = bookkeeping.interruptible(self.forward, inputs, self.kv_append(inputs))
        for session, table in zip(sessions, tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        return logits

    def inputs(self, sessions: Sequence[InferenceSession], tables: torch.Tensor) -> DecodeInputs:
        token_ids = [session.token_ids[-1] for session in sessions]
        context_lens = [session.num_cached_tokens for session in sessions]
        self.input_buffer.host(2, len(sessions)).copy_(torch.tensor([token_ids, context_lens], device="cpu"))
        on_device = self.input_buffer.to_device()
        return DecodeInputs(on_device[0], on_device[1], max(context_lens), tables, sessions)

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step."""
        return sample(logits, [s.params for s in sessions], [len(s.token_ids) for s in sessions])


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


class CopyBlocks:
    """One copy after another: two operations for each session that writes into a block that others own too."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, copies: Sequence[Copy]) -> None:
        """Copy K and V of all layers, before anybody writes into the copies."""
        for source, destination in copies:
            for cache in (self.kv.keys, self.kv.values):
                cache[:, destination] = cache[:, source]
