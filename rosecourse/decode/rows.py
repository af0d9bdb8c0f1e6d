"""Part `rows`: what the device must know of each running session stays there, a row each (vLLM's persistent batch).

A step uploads what has changed on the host, as pairs of an address and a number: nothing inside a block, one number for
a new block, one row for a session that joins. Rows that nobody sits in are pads: they stay at position 0 of a block
that no session can hold, so that a step may run over more rows than are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress, count
from operator import attrgetter, is_, itemgetter, ne
from typing import NamedTuple

from torch import Tensor, float64

from ..config import EngineConfig, SamplingParams
from ..kv.blocks import BlockTable, KVBlockManager
from ..kv.buffers import index_tensor, state_buffer
from ..models.shape import Model
from ..request.draws import key_of
from ..request.session import InferenceSession
from .inputs import Batch, DecodeInputs

TOKEN, POSITION, TEMPERATURE, TOP_K, TOP_P, KEY, FIELDS = range(7)
LIVE = FIELDS  # one column more: 1 where somebody sits, 0 for a pad
UNKNOWN = -1  # no token and no block
MOST = 2**62  # of what an int64 holds
LAST, CACHED = itemgetter(-1), attrgetter("num_cached_tokens")


class SamplingMetadata(NamedTuple):
    positions: Tensor  # int64 [B], of the tokens that are chosen
    temperature: Tensor  # float64 [B], 0 is greedy
    top_k: Tensor  # int64 [B], 0 is all
    top_p: Tensor  # float64 [B]
    keys: Tensor  # int64 [B], `draws.key_of` the seeds


def bits(number: float) -> int:
    """A float64 as the integer of the same 64 bits."""
    return struct.unpack("q", struct.pack("d", number))[0]


def sampling_fields(params: SamplingParams) -> tuple[int, ...]:
    """The fields TEMPERATURE to KEY of a row."""
    return bits(params.temperature), min(params.top_k, MOST), bits(params.top_p), key_of(params.seed)


class View(NamedTuple):
    inputs: DecodeInputs  # of a step over them, as wide as the longest session can be
    live: Tensor  # int64 [B], 1 where somebody sits, 0 for a pad
    metadata: SamplingMetadata


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
        self.placements = -1  # how many the cache had made when the rows were told of their blocks
        self.longest_now = 0  # tokens that the cache has of the session that has most
        self.tables: list[BlockTable] = []
        self.tokens: list[int] = []  # the last token of each row, as the device has it
        self.ends: list[int] = []  # the last block of each row, as the device has it
        self.num_blocks: list[int] = []  # of each row, as the device has them
        self.sampling = False  # whether any row asks for more than the most probable token
        self.arrived: list[BlockTable] = []  # of sessions that have been prefilled last,
        self.first_tokens: Tensor | None = None  # whose first tokens are on the device

    def add_first_tokens(self, tables: list[BlockTable], tokens: Tensor) -> None:
        """The sessions of these tables have their first tokens, int64 [B] on the device; they have no rows yet."""
        self.arrived, self.first_tokens = tables, tokens

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
            inputs = DecodeInputs(rows[TOKEN], rows[POSITION], self.longest, tables, ())
            self.views[size] = View(inputs, rows[LIVE], metadata)
        return self.views[size]

    def plan(self, batch: Batch) -> DecodeInputs:
        """Let the rows be those of this batch, and upload what has changed: nothing, where it goes on as it was."""
        sessions, tables = batch.sessions, batch.tables
        stay = len(tables) == len(self.tables) and all(map(is_, tables, self.tables))
        if stay and sessions[0].num_cached_tokens >= len(sessions[0].token_ids):
            tokens = self.tokens  # a step in flight is making its last token, and all the others', on the device alone
        else:
            tokens = [s.token_ids[-1] if s.num_cached_tokens < len(s.token_ids) else UNKNOWN for s in sessions]
        if stay and tokens == self.tokens and self.kv.placements == self.placements:
            self.tables, self.longest_now = tables, self.longest_now + 1
            self.tokens = [UNKNOWN] * len(tables)  # the device is about to choose others
            return replace(self.view(len(tables)).inputs, max_context_len=self.longest_now, sessions=sessions)
        if not self.known:
            self._clear()
            self.known = True
        changes: dict[int, int] = {}  # address in `state` -> number
        if not stay:
            self._assign_rows(sessions, tables, changes)
        if tokens != self.tokens:
            changed = map(ne, tokens, self.tokens)
            changes.update({row: tokens[row] for row in compress(count(), changed) if tokens[row] != UNKNOWN})
        ends = list(map(LAST, tables))
        if ends != self.ends:
            self._tell_blocks(tables, ends, changes)
        if changes:
            self._upload(changes)
        self.tables, self.ends = tables, ends
        self.tokens = [UNKNOWN] * len(tables)  # the device is about to choose others
        self.placements = self.kv.placements
        self.longest_now = max(map(CACHED, sessions))
        return replace(self.view(len(sessions)).inputs, max_context_len=self.longest_now, sessions=sessions)

    def _assign_rows(
        self, sessions: Sequence[InferenceSession], tables: list[BlockTable], changes: dict[int, int]
    ) -> None:
        """Move the rows of sessions that stay to where they are now, and write those of who joins, and new pads."""
        row_of = dict(zip(map(id, self.tables), count()))
        sources = list(map(row_of.get, map(id, tables)))
        stay = list(zip(*[(row, source) for row, source in enumerate(sources) if source is not None], strict=True))
        if stay and stay[0] != stay[1]:
            self._move(index_tensor(stay, self.kv.device))
        known = [*zip(self.tokens, self.ends, self.num_blocks, strict=True), (UNKNOWN, UNKNOWN, 0)]
        rows = [known[-1 if source is None else source] for source in sources]
        self.tokens, self.ends, self.num_blocks = map(list, zip(*rows, strict=True))
        for row, session in enumerate(sessions):
            if sources[row] is None:
                row_values = (session.num_cached_tokens, *sampling_fields(session.params), 1)
                changes.update(zip(count(POSITION * self.max_rows + row, self.max_rows), row_values, strict=False))
        self._take_first_tokens([row for row, source in enumerate(sources) if source is None], tables)
        for row in range(len(tables), len(self.tables)):  # who sat there has left
            changes |= {
                POSITION * self.max_rows + row: 0,
                LIVE * self.max_rows + row: 0,
                self._table_of(row): self.kv.num_blocks,
            }
        self.sampling = any(session.params.temperature > 0 for session in sessions)

    def _take_first_tokens(self, new_rows: list[int], tables: list[BlockTable]) -> None:
        """Whoever has just been prefilled has a first token on the device, and perhaps there alone."""
        number_of = {id(table): number for number, table in enumerate(self.arrived)}
        taken = [(row, number_of[id(tables[row])]) for row in new_rows if id(tables[row]) in number_of]
        if taken and self.first_tokens is not None:
            self._assign_first_tokens(index_tensor(list(zip(*taken, strict=True)), self.kv.device), self.first_tokens)

    def _assign_first_tokens(self, numbers: Tensor, tokens: Tensor) -> None:
        """numbers: int64 [2, n], of n rows and of the tokens that they begin with."""
        row, number = numbers
        self.fields[TOKEN, row] = tokens[number].clamp(min=0)

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
