"""A device that sleeps: an engine whose decode step takes a known time, and computes nothing.

A thread that sleeps does not hold Python's lock, nor does one that waits for a GPU. So a laptop shows what the host of
a fast GPU sees: the scheduler, the rows, the delivery, the readers and their threads are real.
"""

from __future__ import annotations

import time
from functools import partial

import torch

from ..checks import is_within, require, shown
from ..config import EngineConfig
from ..decode.inputs import DecodeInputs
from ..decode.parts import DecodeParts
from ..decode.runner import EagerRunner, Outcome
from ..kv.blocks import KVBlockManager
from ..models.shape import Model

LONGEST = 60.0  # seconds that a step may sleep


class SleepingRunner(EagerRunner):
    """Sleeps, and then chooses tokens by counting: after token t comes t + 1, whatever the weights say.

    ran: when each step began and ended, in seconds of `time.perf_counter`.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig, *, seconds: float) -> None:
        super().__init__(model, kv, config)
        self.seconds, self.num_tokens = seconds, model.shape.vocab_size
        self.logits = torch.zeros(config.max_batch_size, self.num_tokens)  # nobody reads them
        self.ran: list[tuple[float, float]] = []

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """Tokens int64 [B] after `seconds`."""
        begin, size = time.perf_counter(), len(inputs.token_ids)
        time.sleep(self.seconds)
        tokens = (inputs.token_ids + 1) % self.num_tokens
        inputs.context_lens.add_(self.work.rows.view(size).live)
        inputs.token_ids.copy_(tokens)
        self.ran.append((begin, time.perf_counter()))
        return Outcome(self.logits[:size], tokens)


def sleeping(parts: DecodeParts, seconds: float) -> DecodeParts:
    """The parts of an engine on a CPU, whose decode steps take so many seconds. Raises `ConfigError`.

    parts: of lesson 066 or a later one, which have a runner.
    """
    require(is_within(seconds, 0, LONGEST), f"seconds is {shown(seconds)}: give 0 to {LONGEST:g}")
    return parts.with_(runner=partial(SleepingRunner, seconds=seconds))
