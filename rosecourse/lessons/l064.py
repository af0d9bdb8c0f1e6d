"""Rows that stay: a running session keeps its row on the device, and a step uploads what changed.

    copies = kv.place(tables)             a block for each session's next slot, copy-on-write
    copy_blocks(copies)
    inputs = plan(sessions)               who sits in which row; uploads only what has changed
    forward(inputs, kv_append(inputs))    logits; each layer appends its K and V by the tables
    choose(sessions, logits)              tokens, which stay on the device as the next step's inputs

The device's part is a function of tensors that stay where they are. (The loop of plan, run and read is that of
nano-vllm and mini-sglang.)

A session that runs keeps its last token, its position, its block table and what its sampling needs in a row of
persistent tensors. A step uploads what has changed on the host, as pairs of an address and a number: nothing inside a
block, one number for a new block, one row for a session that joins. vLLM calls this its persistent batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from operator import is_

import torch
from torch import Tensor, float64

from ..config import EngineConfig
from ..decode.inputs import DecodeInputs
from ..decode.parts import DecodeParts
from ..decode.rows import (
    FIELDS,
    KEY,
    POSITION,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    UNKNOWN,
    SamplingMetadata,
    sampling_fields,
)
from ..decode.sampling import NO_TOKEN, next_tokens, sampling_metadata
from ..decode.step import range_for
from ..errors import LogitsError
from ..kv.blocks import BlockTable, Copy, KVBlockManager
from ..kv.buffers import index_tensor, state_buffer
from ..kv.guards import bookkeeping
from ..models.shape import Model
from ..request.session import InferenceSession


class DecodeStep:
    """Place, copy, plan, forward with append.

    The engine calls it inside `bookkeeping`: only the forward, which changes no books, can be interrupted. A block that
    was placed before that stays the session's, and the next step writes into it.
    """

    stages: tuple[str, ...] = ("place", "copy_blocks", "plan", "forward")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.copy_blocks = parts.build("copy_blocks", model, kv, config)
        self.kv_append = parts.build("kv_append", model, kv, config)
        self.forward = parts.build("forward", model, kv, config)
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
        chosen = next_tokens(logits, self.rows.asked() if in_rows else sampling_metadata(sessions, logits.device))
        token_ids = chosen.tolist()  # waits for the device
        if NO_TOKEN in token_ids:
            raise LogitsError([row for row, token_id in enumerate(token_ids) if token_id == NO_TOKEN])
        if in_rows:
            self.rows.take(chosen, token_ids)
        return token_ids


class Rows:
    """The rows of the sessions of the last step, in its order; row b of every tensor is session b's.

    Rows are compact: when sessions leave, the device moves the others up, in one gather. `tables` says who sits where:
    a table lives as long as its session holds blocks, so that one that was freed and comes back is somebody new.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_rows, self.max_blocks = config.max_batch_size, config.max_blocks
        self.state = state_buffer(self.max_rows * (FIELDS + self.max_blocks), kv.device)
        end = FIELDS * self.max_rows
        self.fields = self.state[:end].view(FIELDS, self.max_rows)
        self.block_tables = self.state[end:].view(self.max_rows, self.max_blocks)
        self.forget()

    def forget(self) -> None:
        """Nobody knows what is on the device: the next step uploads all that it needs."""
        self.tables: list[BlockTable] = []
        self.tokens: list[int] = []  # the last token of each row, as the device has it
        self.ends: list[int] = []  # the last block of each row, as the device has it
        self.num_blocks: list[int] = []  # of each row, as the device has them
        self.sampling = False  # whether any row asks for more than the most probable token
        self._look()

    def _look(self) -> None:
        """The rows in use, as views."""
        n = len(self.tokens)
        self.used = self.fields[:, :n]
        self.token_ids, self.positions = self.used[TOKEN], self.used[POSITION]
        self.shared_tables = self.block_tables[:n].expand(self.kv.num_layers, -1, -1)  # all layers read the same

    def plan(self, sessions: Sequence[InferenceSession]) -> DecodeInputs:
        """Let the rows be those of these sessions, in their order, and upload what has changed."""
        changes: dict[int, int] = {}  # address in `state` -> number
        tables = [session.table for session in sessions]
        if len(tables) != len(self.tables) or not all(map(is_, tables, self.tables)):
            self._assign_rows(sessions, tables, changes)
        tokens = [session.token_ids[-1] for session in sessions]
        if tokens != self.tokens:
            changes.update((row, new) for row, new in enumerate(tokens) if new != self.tokens[row])
        ends = [table[-1] for table in tables]
        if ends != self.ends:
            self._tell_blocks(tables, ends, changes)
        if changes:
            self._upload(changes)
        self.tables, self.tokens, self.ends = tables, tokens, ends
        longest = max([session.num_cached_tokens for session in sessions])
        return DecodeInputs(self.token_ids, self.positions, longest, self.shared_tables, sessions)

    def _assign_rows(
        self, sessions: Sequence[InferenceSession], tables: list[BlockTable], changes: dict[int, int]
    ) -> None:
        """Move the rows of sessions that stay to where they are now, and write the rows of those that join."""
        row_of = {id(table): row for row, table in enumerate(self.tables)}
        sources = [row_of.get(id(table)) for table in tables]
        stay = [(row, source) for row, source in enumerate(sources) if source is not None]
        if any(row != source for row, source in stay):
            to, source = index_tensor(list(zip(*stay, strict=True)), self.kv.device)
            self.fields[:, to] = self.fields[:, source]
            self.block_tables[to] = self.block_tables[source]
        self.tokens = [UNKNOWN if source is None else self.tokens[source] for source in sources]
        self.ends = [UNKNOWN if source is None else self.ends[source] for source in sources]
        self.num_blocks = [0 if source is None else self.num_blocks[source] for source in sources]
        for row, session in enumerate(sessions):
            if sources[row] is None:
                row_values = (session.num_cached_tokens, *sampling_fields(session.params))
                changes.update(zip(count(POSITION * self.max_rows + row, self.max_rows), row_values, strict=False))
        self.sampling = any(session.params.temperature > 0 for session in sessions)
        self._look()

    def _tell_blocks(self, tables: list[BlockTable], ends: list[int], changes: dict[int, int]) -> None:
        """The blocks of a table only grow, but for a last one that is replaced by its copy."""
        for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
            if end != self.ends[row]:
                start = self.num_blocks[row]  # what lies before has not changed,
                if start and table[start - 1] != self.ends[row]:
                    start -= 1  # but for a last block that has been replaced
                address = FIELDS * self.max_rows + row * self.max_blocks
                changes.update(enumerate(table[start:], address + start))
                self.num_blocks[row] = len(table)

    def _upload(self, changes: dict[int, int]) -> None:
        addresses, numbers = index_tensor([list(changes), list(changes.values())], self.kv.device)
        self.state[addresses] = numbers

    def advance(self) -> None:
        """Every row has one token more in the cache."""
        self.positions.add_(1)

    def asked(self) -> SamplingMetadata | None:
        """For the token behind the last position of each row; None where all want the most probable one."""
        if not self.sampling:
            return None
        used, floats = self.used, self.used.view(float64)
        return SamplingMetadata(self.positions, floats[TEMPERATURE], used[TOP_K], floats[TOP_P], used[KEY])

    def holds(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the rows, in their order."""
        return len(sessions) == len(self.tables) and all(map(is_, [s.table for s in sessions], self.tables))

    def take(self, chosen: Tensor, token_ids: list[int]) -> None:
        """The tokens that were chosen are the rows' last ones. chosen: int64 [B] on the device; token_ids: the same."""
        self.token_ids.copy_(chosen)
        self.tokens = list(token_ids)  # the caller may change theirs
