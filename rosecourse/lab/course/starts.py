"""What exercises begin as, where the part before the lesson has another contract than the one after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import is_
from typing import Any

from torch import Tensor, float64

from ...config import EngineConfig
from ...decode.inputs import Batch, DecodeInputs
from ...decode.parts import Append, Mailbox
from ...decode.rows import FIELDS, KEY, POSITION, TEMPERATURE, TOKEN, TOP_K, TOP_P, SamplingMetadata, sampling_fields
from ...decode.runner import DeviceStep, Outcome
from ...decode.sampling import argmax_on
from ...decode.step import DecodeStep
from ...kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from ...kv.blocks import BlockTable, KVBlockManager
from ...kv.buffers import index_tensor, state_buffer
from ...models.shape import Model
from ...request.session import InferenceSession


class KVAppendByLayer:
    """Room is made once for all layers; copies are made and slots are found in each layer, as in lesson 061."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        tables = [session.table for session in sessions]
        copies = self.kv.place(tables)
        for layer_idx in range(self.kv.num_layers):
            for old, new in copies:
                self.kv.k_layers[layer_idx][new] = self.kv.k_layers[layer_idx][old]
                self.kv.v_layers[layer_idx][new] = self.kv.v_layers[layer_idx][old]
            self.write(layer_idx, tables, keys[layer_idx], values[layer_idx])
        for table in tables:
            table.num_tokens += 1

    def write(self, layer_idx: int, tables: list[BlockTable], key_new: Tensor, value_new: Tensor) -> None:
        """Write one token of each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        device, n = self.kv.device, len(tables)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        pos_list = [table.num_tokens % self.kv.block_size for table in tables]
        const_pos = all(pos == pos_list[0] for pos in pos_list)  # the same slot in every block: a number will do
        blk_t = index_tensor([table[-1] for table in tables], device)
        if self.triton and const_pos and n >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos_list[0])
            return
        if self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([list(range(n)), pos_list], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
            return
        slots = pos_list[0] if const_pos else index_tensor(pos_list, device)
        k_layer[blk_t, :, slots] = key_new
        v_layer[blk_t, :, slots] = value_new


class KVAppend:
    """Slots are found on the host, from the lists of the sessions, in two lists, and sent."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, inputs: DecodeInputs) -> Append:
        """What writes one layer's K and V [B, H, D], for all sessions."""
        tables = [session.table for session in inputs.sessions]
        blocks = index_tensor([table[-1] for table in tables], self.kv.device)
        slots = index_tensor([table.num_tokens % self.kv.block_size for table in tables], self.kv.device)

        def append(layer_idx: int, k: Tensor, v: Tensor) -> None:
            self.kv.k_layers[layer_idx][blocks, :, slots] = k
            self.kv.v_layers[layer_idx][blocks, :, slots] = v

        return append


class Rows:
    """All rows are uploaded anew in each step, so that nothing has to be known of those of the step before."""

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
        self.tables: list[BlockTable] = []  # of the sessions in the rows, in their order
        self.sampling = False  # whether any row asks for more than the most probable token

    def plan(self, sessions: Sequence[InferenceSession]) -> DecodeInputs:
        """Let the rows be those of these sessions, in their order."""
        self.forget()
        changes: dict[int, int] = {}  # address in `state` -> number
        for row, session in enumerate(sessions):
            self._tell(row, session, changes)
        self._upload(changes)
        self.tables = [session.table for session in sessions]
        self.sampling = any(session.params.temperature > 0 for session in sessions)
        self.used = self.fields[:, : len(sessions)]
        longest = max(session.num_cached_tokens for session in sessions)
        # All layers read the same.
        tables = self.block_tables[: len(sessions)].expand(self.kv.num_layers, -1, -1)
        return DecodeInputs(self.used[TOKEN], self.used[POSITION], longest, tables, sessions)

    def _tell(self, row: int, session: InferenceSession, changes: dict[int, int]) -> None:
        """Put a whole row into the changes: the six fields, then the blocks."""
        told = (session.token_ids[-1], session.num_cached_tokens, *sampling_fields(session.params))
        changes.update((field * self.max_rows + row, number) for field, number in enumerate(told))
        changes.update(enumerate(session.table, FIELDS * self.max_rows + row * self.max_blocks))

    def _upload(self, changes: dict[int, int]) -> None:
        """Let the device write numbers to addresses, which go up in one tensor."""
        addresses, numbers = index_tensor([list(changes), list(changes.values())], self.kv.device)
        self.state[addresses] = numbers

    def advance(self) -> None:
        """Every row has one token more in the cache."""
        self.used[POSITION].add_(1)

    def asked(self) -> SamplingMetadata | None:
        """For the token behind the last position of each row; None where all want the most probable one."""
        if not self.sampling:
            return None
        floats = self.used.view(float64)
        return SamplingMetadata(
            self.used[POSITION], floats[TEMPERATURE], self.used[TOP_K], floats[TOP_P], self.used[KEY]
        )

    def holds(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the rows, in their order."""
        return len(sessions) == len(self.tables) and all(map(is_, [s.table for s in sessions], self.tables))

    def take(self, chosen: Tensor, token_ids: list[int]) -> None:
        """The tokens that were chosen are the rows' last ones. chosen: int64 [B] on the device; token_ids: the same."""
        self.used[TOKEN].copy_(chosen)


class Runner:
    """The host launches one operation after another, as in lesson 065."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = argmax_on(kv.device)

    def start(self, work: DeviceStep) -> None:
        """Take the work to run; once, when the engine is built."""
        self.work = work

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """Run it over the rows of a step."""
        return self.work(inputs, sampled)


class Pipeline:
    """The host waits for each step before it launches the next one, as in lesson 066."""

    steps_ahead = 0

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.in_flight: deque[Batch] = deque()

    def launch(self, batch: Batch) -> None:
        """Start a step."""
        outcome = self.step.run(batch)
        token_ids = outcome.tokens.tolist()  # waits for the device
        batch.pending = token_ids
        self.in_flight.append(batch)

    def land(self) -> tuple[Batch, list[int]]:
        """The oldest batch in flight, and the token of each of its rows."""
        landed = self.in_flight.popleft()
        self.step.has_read(landed, landed.pending)
        return landed, landed.pending

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight."""
        self.in_flight.clear()
        self.step.rows.forget()


class Delivery:
    """Each token wakes its reader, as in lessons 035 to 067."""

    most_wakes = 8

    def __init__(self, config: EngineConfig) -> None:
        pass

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            mailbox.wake()

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
