"""The parts that the ladder starts with: everything per layer and per request, in Python.

    tables  = block_tables(sessions)           logical block -> physical block, what attention reads
    inputs  = last token ids, context lengths  (and the tables)
    outputs = forward(inputs)                  logits, and each layer's new K and V
    kv_append(sessions, outputs)               put K and V where the next step will look

Attention takes the new token's K and V as arguments, because they are not in the cache yet. That is the articles'
contract. A later lesson may bring a step of another shape: it is a part like the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import EngineConfig
from ..decode.inputs import Batch, DecodeInputs, DecodeOutputs
from ..decode.parts import DecodeParts, Mailbox
from ..decode.prefill import AttentionByGroups, PromptTokens
from ..decode.sampling import tokens_of_each
from ..decode.step import range_for
from ..kernels import paged_attention_for
from ..kv.buffers import StagingBuffer
from ..kv.guards import bookkeeping
from ..kv.pool import KVPool
from ..models.shape import Model, query_heads_per_kv_head
from ..request.sampling import sample
from ..request.session import InferenceSession
from .l035_blocks import KVBlockManager


class BlockTables:
    """Rows built from Python lists, for every layer, at every step; one asynchronous copy to the device for all."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks  # global block id -> block index in the layer
            rows: list[list[int]] = []
            for session in sessions:
                ids = session.block_ids_per_layer[layer_idx]
                rows.append([block_id - offset for block_id in ids] + [0] * (self.max_blocks - len(ids)))
            block_tables_cpu[layer_idx].copy_(torch.tensor(rows, dtype=torch.int32, device="cpu"))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()


class DecodeForward:
    """K and V are read where they lie, through the block tables."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.paged_attention = paged_attention_for(kv, model.shape.num_heads)

    def __call__(self, inputs: DecodeInputs) -> DecodeOutputs:
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        self.paged_attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys.append(k)
            values.append(v)
            return self.paged_attention.run(layer_idx, q, k, v)

        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, attend)
        return DecodeOutputs(self.model.logits(hidden), keys, values)


class KVAppend:
    """One `append_token` for every layer and every session: L x B calls a step."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        for b, block_ids in enumerate(block_ids_list):
            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])


class AppendAfterForward:
    """Block tables, inputs, forward, append.

    The engine calls it inside `bookkeeping`: an interrupt waits until a part has changed what it changes, whoever has
    written the part. Only the forward, which changes no books, can be interrupted.
    """

    stages: tuple[str, ...] = ("block_tables", "forward", "kv_append")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.block_tables: BlockTables = parts.build("block_tables", model, kv, config)
        self.forward = parts.build("forward", model, kv, config)
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


class Pipeline:
    """The host launches a step and waits for it; then it launches the next one, while the device waits."""

    steps_ahead = 0

    def __init__(self, step: Any, kv: KVPool, config: EngineConfig) -> None:
        self.step = step
        self.range = range_for(kv.device, config.nvtx)
        self.in_flight: deque[Batch] = deque()

    def launch(self, batch: Batch) -> None:
        """Start a step."""
        batch.pending = self.step(batch.sessions)
        self.in_flight.append(batch)

    def land(self) -> tuple[Batch, list[int]]:
        """Wait for the oldest batch: it, and the token of each of its rows or NO_TOKEN."""
        batch = self.in_flight[0]
        with self.range("rosecourse.read"):
            token_ids = tokens_of_each(self.step, batch.sessions, batch.pending)
        self.in_flight.popleft()
        return batch, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight."""
        self.in_flight.clear()


class Prefill:
    """The host does not wait for any of it. Prompts of equal lengths share an attention."""

    def __init__(self, model: Model, kv: KVPool, config: EngineConfig) -> None:
        self.model, self.kv = model, kv
        heads = query_heads_per_kv_head(model.shape.num_heads, model.shape.num_kv_heads)
        self.attention = AttentionByGroups(kv, heads)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Logits [B, vocab_size] for the token after each session's last."""
        tokens = PromptTokens(self.kv, sessions)
        attention = self.attention.plan(tokens)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.kv.write_tokens(layer_idx, tokens.blocks[layer_idx], tokens.slots, k, v)
            return attention(layer_idx, q, k, v)

        hidden = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(hidden[tokens.last_rows])


class Delivery:
    """No token waits; but as many threads as a step has tokens want Python's one lock, which the next step needs."""

    def __init__(self, config: EngineConfig) -> None:
        pass

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            mailbox.wake()

    def flush(self) -> None:
        """Nobody has been left asleep."""
