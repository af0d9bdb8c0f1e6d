"""One CUDA graph: the device's part of a step is recorded once, and replayed with one launch.

    copies = kv.place(tables)           a block for each session's next slot, copy-on-write
    copy_blocks(copies)
    inputs = plan(sessions)             who sits in which row; uploads only what has changed
    runner(inputs)                      forward with append, sampling, advance: eager, or one graph
    choose(sessions, logits)            reads the tokens, which are the next step's inputs already

(The loop of plan, run and read is that of nano-vllm and mini-sglang.)

They stay at position 0 of a block that no session can hold. The host knows the last token of each row before it plans a
step.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from operator import is_
from typing import Any

import torch
from torch import float64
from tqdm import tqdm

from ..config import EngineConfig
from ..decode.graphs import CUDAGraphs, Graph
from ..decode.inputs import DecodeInputs
from ..decode.parts import DecodeParts
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
from ..decode.runner import LATE, Outcome, buckets_up_to, free_memory
from ..decode.sampling import NO_TOKEN, Best, argmax, argmax_on, next_tokens, sampling_metadata
from ..decode.step import range_for
from ..errors import LogitsError
from ..kv.blocks import BlockTable, Copy, KVBlockManager
from ..kv.buffers import index_tensor, state_buffer
from ..kv.guards import bookkeeping
from ..models.shape import Model
from ..request.session import InferenceSession


class DecodeStep:
    """Place, copy, plan, run.

    The engine calls it inside `bookkeeping`: only the run, which changes no books, can be interrupted. A block that was
    placed before that stays the session's, and the next step writes into it.
    """

    stages: tuple[str, ...] = ("place", "copy_blocks", "plan", "runner")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.copy_blocks = parts.build("copy_blocks", model, kv, config)
        self.rows: Rows = parts.build("rows", model, kv, config)
        self.runner = parts.build("runner", model, kv, config)
        self.best = self.runner.best
        forward, kv_append = (parts.build(name, model, kv, config) for name in ("forward", "kv_append"))
        self.runner.start(parts.build("device_step", forward, kv_append, self.rows, self.best))
        self.place, self.plan = kv.place, self.rows.plan
        self.range = range_for(kv.device, config.nvtx)
        self.made: Any = None, 0, None  # of the last step: logits, their version, tokens

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        tables: list[BlockTable] = [session.table for session in sessions]
        with self.range("roseinfer.decode_step_sessions.place"):
            copies: list[Copy] = self.place(tables)
            self.copy_blocks(copies)
        try:
            with self.range("roseinfer.decode_step_sessions.plan"):
                inputs = self.plan(sessions)
            with self.range("roseinfer.decode_step_sessions.run"):
                logits, tokens = bookkeeping.interruptible(self.runner, inputs, self.rows.sampling)
        except BaseException:
            self.rows.forget()  # nobody knows how far it came
            raise
        for session, table in zip(sessions, tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        with torch.inference_mode(False):  # so that the copy's version tells whether somebody has changed it
            copy = logits.clone()
        self.made = copy, copy._version, tokens
        return copy

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step."""
        copy, version, tokens = self.made
        is_made = logits is copy and logits._version == version and self.rows.holds(sessions)
        if not is_made:  # by the step itself, or somebody has changed the logits
            tokens = next_tokens(logits, sampling_metadata(sessions, logits.device), self.best)
        token_ids = tokens.tolist()  # waits for the device
        if NO_TOKEN in token_ids:
            raise LogitsError([row for row, token_id in enumerate(token_ids) if token_id == NO_TOKEN])
        if is_made:
            self.rows.read(token_ids)
        return token_ids


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
        """Let every row be a pad."""
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

    def plan(self, sessions: Sequence[InferenceSession]) -> DecodeInputs:
        """Let the rows be those of these sessions, in their order, and upload what has changed."""
        if not self.known:
            self._clear()
            self.known = True
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
            to, source = index_tensor(list(zip(*stay, strict=True)), self.kv.device)
            self.fields[:, to] = self.fields[:, source]
            self.block_tables[to] = self.block_tables[source]
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
        """The address of a row's block table."""
        return (LIVE + 1) * self.max_rows + row * self.max_blocks

    def _upload(self, changes: dict[int, int]) -> None:
        addresses, numbers = index_tensor([list(changes), list(changes.values())], self.kv.device)
        self.state[addresses] = numbers

    def holds(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the rows, in their order."""
        return len(sessions) == len(self.tables) and all(map(is_, [s.table for s in sessions], self.tables))

    def read(self, token_ids: list[int]) -> None:
        """The host has read them."""
        self.tokens = list(token_ids)  # the caller may change theirs


class GraphRunner:
    """A graph for each bucket, captured when the engine starts; a step is one replay of the next larger one.

    Those that sample are captured when they are first needed. A CPU has no graphs, and where a capture fails there are
    none either: the steps then run eagerly. vLLM and SGLang capture their decode steps so.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.new_graph = self.graphs_of(kv.device)
        self.best = argmax_on(kv.device) if self.new_graph is None else argmax
        self.buckets = buckets_up_to(config.max_batch_size)
        self.graphs: dict[tuple[int, bool], Graph] = {}  # of a bucket, and whether it samples
        self.memory_bytes = 0  # that the captures have taken from the device, the kernels that they loaded among them
        # What a replay leaves behind lies outside the memory that all graphs share.
        self.logits = torch.empty(self.buckets[-1], model.shape.vocab_size, dtype=model.dtype, device=kv.device)
        self.tokens = torch.empty(self.buckets[-1], dtype=torch.int64, device=kv.device)

    def graphs_of(self, device: torch.device) -> Callable[[], Graph] | None:
        """What makes a graph on a device; None where there are none."""
        return CUDAGraphs() if device.type == "cuda" else None

    def start(self, work: DeviceStep) -> None:
        """Capture a greedy step of each bucket, the largest first: the others fit into its memory."""
        self.work = work
        if self.new_graph is not None:
            with torch.inference_mode():
                for bucket in tqdm(self.buckets[::-1], "graphs", leave=False, delay=2.0, disable=None):
                    self._capture(bucket, False)

    def _capture(self, bucket: int, sampled: bool) -> None:
        """Leaves the rows as they are. Where it fails, there are no graphs from then on."""

        def run() -> None:
            logits, tokens = self.work(self.work.rows.view(bucket).inputs, sampled)
            self.logits[:bucket].copy_(logits)
            self.tokens[:bucket].copy_(tokens)

        if self.new_graph is None:
            return
        free = free_memory(self.logits.device)
        try:
            graph = self.new_graph()
            with self.work.rows.all_pads():
                graph.warm_up(run)
            graph.capture(run)
            self.graphs[bucket, sampled] = graph
            self.memory_bytes += max(0, free - free_memory(self.logits.device))
        except Exception as error:
            self.graphs.clear()
            self.new_graph = None
            self.memory_bytes = 0
            first_line = str(error).partition("\n")[0]
            warnings.warn(f"no graph of {bucket} rows, so decode steps run eagerly: {first_line}", stacklevel=2)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        if self.new_graph is not None and (bucket, sampled) not in self.graphs:
            warnings.warn(LATE, stacklevel=2)
            self._capture(bucket, sampled)
        graph = self.graphs.get((bucket, sampled))
        if graph is None:
            return self.work(inputs, sampled)
        graph.replay()
        return Outcome(self.logits[:num_rows], self.tokens[:num_rows])


class DeviceStep:
    """Forward with append, the advance of the rows, sampling. The host decides nothing in between."""

    def __init__(self, forward: Any, kv_append: Any, rows: Rows, best: Best) -> None:
        self.forward, self.kv_append, self.rows, self.best = forward, kv_append, rows, best

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """One more token for each row. sampled: whether any row asks for more than the most probable token."""
        view = self.rows.view(len(inputs.token_ids))
        logits = self.forward(inputs, self.kv_append(inputs))
        inputs.context_lens.add_(view.live)
        tokens = next_tokens(logits, view.metadata if sampled else None, self.best)
        inputs.token_ids.copy_(tokens.clamp(min=0))  # a pad's, and NO_TOKEN, must be of the vocabulary
        return Outcome(logits, tokens)
