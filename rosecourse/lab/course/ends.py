"""What exercises end as, where the lesson's own part would do something else on a CPU."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from ...config import EngineConfig
from ...decode.graphs import Graph
from ...decode.inputs import Batch, DecodeInputs
from ...decode.parts import Mailbox
from ...decode.runner import DeviceStep, Outcome, buckets_up_to
from ...decode.sampling import argmax
from ...decode.step import DecodeStep
from ...kv.blocks import KVBlockManager
from ...kv.guards import bookkeeping
from ...models.shape import Model
from ..checking.cpu_graph import graphs_for
from ..checking.events import events_for


class Runner:
    """A graph for each bucket, captured at the start; a step is one replay of the smallest that fits.

    The engine's own part goes on eagerly where a capture fails, and has no graphs on a CPU.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = argmax  # a function of tensors alone
        self.new_graph = graphs_for(kv.device)
        self.buckets = buckets_up_to(config.max_batch_size)
        self.graphs: dict[tuple[int, bool], Graph] = {}  # of a bucket, and whether it samples
        most = self.buckets[-1]  # what a replay leaves behind lies outside the memory that all graphs share
        self.logits = torch.empty(most, model.shape.vocab_size, dtype=model.dtype, device=kv.device)
        self.tokens = torch.empty(most, dtype=torch.int64, device=kv.device)

    @torch.inference_mode()
    def start(self, work: DeviceStep) -> None:
        """Capture a greedy step of each bucket, the largest first: the others fit into its memory."""
        self.work = work
        for bucket in reversed(self.buckets):
            self.graphs[bucket, False] = self.captured(bucket, False)

    def captured(self, bucket: int, sampled: bool) -> Graph:
        """A graph of a step over a bucket; the sessions in the rows stay as they are."""
        inputs = self.work.rows.view(bucket).inputs  # those of any step

        def run() -> None:
            logits, tokens = self.work(inputs, sampled)
            self.logits[:bucket].copy_(logits)
            self.tokens[:bucket].copy_(tokens)

        graph = self.new_graph()
        with self.work.rows.all_pads():
            graph.warm_up(run)
        graph.capture(run)
        return graph

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """Replay the graph of the smallest bucket that has a row for each session."""
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        if (bucket, sampled) not in self.graphs:  # steps that sample are captured when they are first needed
            self.graphs[bucket, sampled] = self.captured(bucket, sampled)
        self.graphs[bucket, sampled].replay()
        return Outcome(self.logits[:num_rows], self.tokens[:num_rows])


class Slot:
    """Memory of the host for the tokens of one step, and an event that says when they are there."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.memory = torch.empty(max_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.event = events_for(device)()
        self.size = 0

    def put(self, tokens: torch.Tensor) -> None:
        """Let the device copy int64 [B] here when it has come so far; the host goes on."""
        self.size = len(tokens)
        self.memory[: self.size].copy_(tokens, non_blocking=True)
        self.event.record()  # behind the copy

    def read(self) -> list[int]:
        """The tokens; waits for them, and for nothing that comes after them."""
        self.event.synchronize()
        return self.memory[: self.size].tolist()


class Pipeline:
    """The host launches step t + 1, and then reads what step t has made."""

    steps_ahead = 1

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.in_flight: deque[Batch] = deque()
        self.empty = deque(Slot(config.max_batch_size, kv.device) for _ in range(self.steps_ahead + 1))

    def launch(self, batch: Batch) -> None:
        """Start a step."""
        outcome = self.step.run(batch)
        self.empty[0].put(outcome.tokens)
        batch.pending = self.empty.popleft()
        self.in_flight.append(batch)

    def land(self) -> tuple[Batch, list[int]]:
        """Wait for the oldest batch in flight: it, and the token of each of its rows."""
        oldest = self.in_flight[0]
        token_ids = bookkeeping.interruptible(oldest.pending.read)  # whatever stops it has changed nothing
        self.in_flight.popleft()
        self.empty.append(oldest.pending)
        if not self.in_flight:
            self.step.has_read(oldest, token_ids)
        return oldest, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight. Waits until the device has made them."""
        while self.in_flight:
            with suppress(Exception):  # whatever has become of the device
                self.in_flight[0].pending.read()
            self.empty.append(self.in_flight.popleft().pending)
        self.step.rows.forget()


class Delivery:
    """Items lie in their mailboxes at once; the readers that sleep are woken in turns, a few at each hand-over."""

    most_wakes = 8

    def __init__(self, config: EngineConfig) -> None:
        self.waiting: dict[Mailbox, None] = {}  # with something to read; whoever has waited longest is first

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        for mailbox, item in items:
            mailbox.put(item)
            self.waiting[mailbox] = None  # whoever waits already keeps its place
        self._wake(self.most_wakes)

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
        self._wake(len(self.waiting))

    def _wake(self, most: int) -> None:
        for mailbox in list(self.waiting)[:most]:
            del self.waiting[mailbox]
            mailbox.wake()
