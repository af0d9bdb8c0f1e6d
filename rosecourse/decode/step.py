"""The decode step: a fixed skeleton whose parts the lessons replace, one at a time.

    tables  = block_tables(sessions)              logical block -> physical block, what attention reads
    inputs  = last token ids, context lengths     (and the tables)
    outputs = forward(inputs)                     logits, and each layer's new K and V
    kv_append(sessions, outputs)                  put K and V where the next step will look

K and V are appended after the forward: attention takes the new token's K and V as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..config import EngineConfig
from ..kv.blocks import KVBlockManager
from ..kv.buffers import StagingBuffer
from ..models.shape import Model
from ..request.session import InferenceSession
from .ranges import range_for


@dataclass(frozen=True)
class DecodeInputs:
    """What the forward of one decode step reads; B sessions, L layers."""

    token_ids: torch.Tensor  # int64 [B], each session's last token
    context_lens: torch.Tensor  # int64 [B], tokens in the cache, which is also the position of the last token
    max_context_len: int
    block_tables: torch.Tensor  # int32 [L, B, max_blocks], physical block of each logical block
    sessions: Sequence[InferenceSession]


@dataclass(frozen=True)
class DecodeOutputs:
    """What the forward of one decode step gives."""

    logits: torch.Tensor  # [B, vocab_size]
    keys: list[torch.Tensor]  # L times [B, H, D], the K of each session's last token
    values: list[torch.Tensor]


@dataclass(frozen=True)
class DecodeParts:
    """The replaceable parts: classes, each built once per engine as `part(model, kv, config)`.

    block_tables: called with the sessions, returns int32 [L, B, max_blocks] on the device.
    forward: called with `DecodeInputs`, returns `DecodeOutputs`.
    kv_append: called with the sessions and the lists of keys and values; appends one token to every session.
    """

    block_tables: Callable[..., Any]
    forward: Callable[..., Any]
    kv_append: Callable[..., Any]

    def with_(self, **parts: Callable[..., Any]) -> DecodeParts:
        """The same parts with some replaced, such as `BASELINE.with_(kv_append=MyKVAppend)`."""
        return replace(self, **parts)


class DecodeStep:
    """The skeleton, with its parts built for one engine. `config` is the engine's, with nothing left open."""

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.block_tables = parts.block_tables(model, kv, config)
        self.forward = parts.forward(model, kv, config)
        self.kv_append = parts.kv_append(model, kv, config)
        self.range = range_for(kv.device, config.nvtx)
        self.input_buffer = StagingBuffer(2 * config.max_batch_size, torch.int64, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        with self.range("roseinfer.decode_step_sessions.build_block_tables"):
            tables = self.block_tables(sessions)
        inputs = self.inputs(sessions, tables)
        with self.range("roseinfer.model.forward"):
            outputs = self.forward(inputs)
        with self.range("roseinfer.kv.append_token"):
            self.kv_append(sessions, outputs.keys, outputs.values)
        for session in sessions:
            session.num_cached_tokens += 1
        return outputs.logits

    def inputs(self, sessions: Sequence[InferenceSession], tables: torch.Tensor) -> DecodeInputs:
        token_ids = [session.token_ids[-1] for session in sessions]
        context_lens = [session.num_cached_tokens for session in sessions]
        self.input_buffer.host(2, len(sessions)).copy_(torch.tensor([token_ids, context_lens]))
        on_device = self.input_buffer.to_device()
        return DecodeInputs(on_device[0], on_device[1], max(context_lens), tables, sessions)
