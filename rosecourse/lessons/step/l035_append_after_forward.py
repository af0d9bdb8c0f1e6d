"""The decode step of lessons 035 to 061: K and V are appended after the forward.

    tables  = block_tables(sessions)           logical block -> physical block, what attention reads
    inputs  = last token ids, context lengths  (and the tables)
    outputs = forward(inputs)                  logits, and each layer's new K and V
    kv_append(sessions, outputs)               put K and V where the next step will look

Attention takes the new token's K and V as arguments, because they are not in the cache yet. That is the articles'
contract. A later lesson may bring a step of another shape: it is a part like the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs
from ...decode.parts import BlockTables, DecodeParts, Forward, KVAppend
from ...decode.ranges import range_for
from ...kv.blocks import KVBlockManager
from ...kv.bookkeeping import bookkeeping
from ...kv.buffers import StagingBuffer
from ...models.shape import Model
from ...request.sampling import sample
from ...request.session import InferenceSession


class AppendAfterForward:
    """Block tables, inputs, forward, append.

    The engine calls it inside `bookkeeping`: an interrupt waits until a part has changed what it changes, whoever has
    written the part. Only the forward, which changes no books, can be interrupted.
    """

    stages: tuple[str, ...] = ("block_tables", "forward", "kv_append")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.block_tables: BlockTables = parts.build("block_tables", model, kv, config)
        self.forward: Forward = parts.build("forward", model, kv, config)
        self.kv_append: KVAppend = parts.build("kv_append", model, kv, config)
        self.range = range_for(kv.device, config.nvtx)
        self.input_buffer = StagingBuffer(2 * config.max_batch_size, torch.int64, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        with self.range("roseinfer.decode_step_sessions.build_block_tables"):
            tables = self.block_tables(sessions)
        inputs = self.inputs(sessions, tables)
        with self.range("roseinfer.model.forward"):
            outputs = bookkeeping.interruptible(self.forward, inputs)
        with self.range("roseinfer.kv.append_token"):
            self.kv_append(sessions, outputs.keys, outputs.values)
        for session in sessions:
            session.num_cached_tokens += 1
        return outputs.logits

    def inputs(self, sessions: Sequence[InferenceSession], tables: torch.Tensor) -> DecodeInputs:
        token_ids = [session.token_ids[-1] for session in sessions]
        context_lens = [session.num_cached_tokens for session in sessions]
        self.input_buffer.host(2, len(sessions)).copy_(torch.tensor([token_ids, context_lens], device="cpu"))
        on_device = self.input_buffer.to_device()
        return DecodeInputs(on_device[0], on_device[1], max(context_lens), tables, sessions)

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step."""
        return sample(logits, [s.params for s in sessions], [len(s.token_ids) for s in sessions])
