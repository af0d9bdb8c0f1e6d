"""One step behind: the host reads the tokens of a step while the device runs the next one.

Of a session that joins the host has read the first token, and uploads it with the rest of the row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from operator import is_

import torch
from torch import Tensor, float64

from ..config import EngineConfig
from ..decode.inputs import Batch, DecodeInputs
from ..decode.pipeline import FULL, TokenRing
from ..decode.rows import (
    KEY,
    LIVE,
    POSITION,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    UNKNOWN,
    SamplingMetadata,
    View,
    sampling_fields,
)
from ..decode.step import DecodeStep, range_for
from ..errors import RosecourseError
from ..kv.blocks import BlockTable, KVBlockManager
from ..kv.buffers import index_tensor, state_buffer
from ..kv.guards import bookkeeping
from ..models.shape import Model
from ..request.session import InferenceSession


class Rows:
    """The rows of the sessions of the last step, in its order; row b of every tensor is session b's.

    Rows are compact: when sessions leave, the device moves the others up, in one gather. `tables` says who sits where:
    a table lives as long as its session holds blocks, so that one that was freed and comes back is somebody new.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_rows, self.max_blocks = config.max_batch_size, config.max_blocks
        self.state = state_buffer(self.max_rows * (LIVE + 1 + self.max_blocks), kv.device)
        end = (LIVE + 1) * self.max_rows
        self.fields = self.state[:end].view(LIVE + 1, self.max_rows)
        self.block_tables = self.state[end:].view(self.max_rows, self.max_blocks)
        # Sparse attention takes no context that is longer than the cache, and no session is.
        self.longest = min(config.max_blocks, kv.num_blocks) * config.block_size - 1
        self.views: dict[int, View] = {}
        self.forget()

    def forget(self) -> None:
        """Nobody knows what is on the device: the next step uploads all that it needs."""
        self.known = False
        self.tables: list[BlockTable] = []
        self.tokens: list[int] = []  # the last token of each row, as the device has it
        self.ends: list[int] = []  # the last block of each row, as the device has it
        self.num_blocks: list[int] = []  # of each row, as the device has them
        self.sampling = False  # whether any row asks for more than the most probable token

    def _clear(self) -> None:
        self.fields.zero_()
        self.block_tables[:, 0] = self.kv.num_blocks

    @contextmanager
    def all_pads(self) -> Iterator[None]:
        """For what may run over the rows without doing anything to the sessions that sit there."""
        saved = self.state.clone()
        self._clear()
        try:
            yield
        finally:
            self.state.copy_(saved)

    def view(self, size: int) -> View:
        """The first rows, pads among them, as views of what stays where it is."""
        if size not in self.views:
            rows = self.fields[:, :size]
            floats = rows.view(float64)
            metadata = SamplingMetadata(rows[POSITION], floats[TEMPERATURE], rows[TOP_K], floats[TOP_P], rows[KEY])
            tables = self.block_tables[:size].expand(self.kv.num_layers, -1, -1)  # all layers read the same
            self.views[size] = View(
                DecodeInputs(rows[TOKEN], rows[POSITION], self.longest, tables, ()), rows[LIVE], metadata
            )
        return self.views[size]

    def plan(self, batch: Batch) -> DecodeInputs:
        """Let the rows be those of this batch, and upload what has changed."""
        if not self.known:
            self._clear()
            self.known = True
        changes: dict[int, int] = {}  # address in `state` -> number
        sessions, tables = batch.sessions, batch.tables
        if len(tables) != len(self.tables) or not all(map(is_, tables, self.tables)):
            self._assign_rows(sessions, tables, changes)
        # The token that a step in flight is making is on the device alone.
        tokens = [s.token_ids[-1] if s.num_cached_tokens < len(s.token_ids) else UNKNOWN for s in sessions]
        if tokens != self.tokens:
            known = (row for row, (new, old) in enumerate(zip(tokens, self.tokens, strict=True)) if new != old)
            changes.update((row, tokens[row]) for row in known if tokens[row] != UNKNOWN)
        ends = [table[-1] for table in tables]
        if ends != self.ends:
            self._tell_blocks(tables, ends, changes)
        if changes:
            self._upload(changes)
        self.tables, self.ends = tables, ends
        self.tokens = [UNKNOWN] * len(tables)  # the device is about to choose others
        longest = max([session.num_cached_tokens for session in sessions])
        return replace(self.view(len(sessions)).inputs, max_context_len=longest, sessions=sessions)

    def _assign_rows(
        self, sessions: Sequence[InferenceSession], tables: list[BlockTable], changes: dict[int, int]
    ) -> None:
        """Move the rows of sessions that stay to where they are now, and write those of who joins, and new pads."""
        row_of = {id(table): row for row, table in enumerate(self.tables)}
        sources = [row_of.get(id(table)) for table in tables]
        stay = [(row, source) for row, source in enumerate(sources) if source is not None]
        if any(row != source for row, source in stay):
            self._move(index_tensor(list(zip(*stay, strict=True)), self.kv.device))
        self.tokens = [UNKNOWN if source is None else self.tokens[source] for source in sources]
        self.ends = [UNKNOWN if source is None else self.ends[source] for source in sources]
        self.num_blocks = [0 if source is None else self.num_blocks[source] for source in sources]
        for row, session in enumerate(sessions):
            if sources[row] is None:
                row_values = (session.num_cached_tokens, *sampling_fields(session.params), 1)
                changes.update(zip(count(POSITION * self.max_rows + row, self.max_rows), row_values, strict=False))
        for row in range(len(tables), len(self.tables)):  # who sat there has left
            changes |= {
                POSITION * self.max_rows + row: 0,
                LIVE * self.max_rows + row: 0,
                self._table_of(row): self.kv.num_blocks,
            }
        self.sampling = any(session.params.temperature > 0 for session in sessions)

    def _move(self, rows: Tensor) -> None:
        """rows: int64 [2, n], where n rows are to be and where they are."""
        to, source = rows
        self.fields[:, to] = self.fields[:, source]
        self.block_tables[to] = self.block_tables[source]

    def _tell_blocks(self, tables: list[BlockTable], ends: list[int], changes: dict[int, int]) -> None:
        """The blocks of a table only grow, but for a last one that is replaced by its copy."""
        for row, (table, end) in enumerate(zip(tables, ends, strict=True)):
            if end != self.ends[row]:
                start = self.num_blocks[row]  # what lies before has not changed,
                if start and table[start - 1] != self.ends[row]:
                    start -= 1  # but for a last block that has been replaced
                changes.update(enumerate(table[start:], self._table_of(row) + start))
                self.num_blocks[row] = len(table)

    def _table_of(self, row: int) -> int:
        return (LIVE + 1) * self.max_rows + row * self.max_blocks

    def _upload(self, changes: dict[int, int]) -> None:
        addresses, numbers = index_tensor([list(changes), list(changes.values())], self.kv.device)
        self.state[addresses] = numbers

    def holds(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the rows, in their order."""
        return len(sessions) == len(self.tables) and all(map(is_, [s.table for s in sessions], self.tables))

    def read(self, batch: Batch, token_ids: list[int]) -> None:
        """The host has read the tokens of a batch, which may be another than that of the rows."""
        if self.tables is batch.tables:
            self.tokens = list(token_ids)  # the caller may change theirs


class Pipeline:
    """The host is one step behind: it launches step t + 1, and reads what step t has made while the device goes on.

    That works because the device has each chosen token in its row (lesson 064), and step t + 1 reads it there. A CPU
    runs each operation inside the call, so there is nothing to run ahead of. (vLLM's asynchronous scheduling and
    SGLang's overlap scheduler are one step behind, too; the idea is NanoFlow's.)

    steps_ahead: how many batches may be in flight when the host plans another one. in_flight: the oldest first.
    """

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.range = range_for(kv.device, config.nvtx)
        self.steps_ahead = self.ahead_on(kv.device)
        self.ring = TokenRing(self.steps_ahead + 1, config.max_batch_size, kv.device)
        self.in_flight: deque[Batch] = deque()

    def ahead_on(self, device: torch.device) -> int:
        return 1 if device.type == "cuda" else 0

    def launch(self, batch: Batch) -> None:
        """Start a step. Raises `RosecourseError` where as many are in flight as can be."""
        if not self.ring.empty:
            raise RosecourseError(FULL)
        batch.pending = self.ring.put(self.step.run(batch).tokens)
        self.in_flight.append(batch)

    def land(self) -> tuple[Batch, list[int]]:
        """Wait for the oldest batch: it, and the token of each row or NO_TOKEN. An interrupt changes nothing."""
        batch = self.in_flight[0]
        with self.range("rosecourse.read"):
            token_ids = bookkeeping.interruptible(batch.pending.read)
        self.in_flight.popleft()
        self.ring.give_back(batch.pending)
        self.step.has_read(batch, token_ids)
        return batch, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight. Waits for the device."""
        while self.in_flight:
            with suppress(Exception):  # whatever has become of the device, nothing is in flight afterwards
                self.in_flight[0].pending.read()
            self.ring.give_back(self.in_flight.popleft().pending)
        self.step.rows.forget()
