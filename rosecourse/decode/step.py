"""The decode step: plan on the host, run on the device, read.

    copies = kv.place(tables)           a block for each session's next slot, copy-on-write
    copy_blocks(copies)
    inputs = plan(sessions)             who sits in which row; uploads only what has changed
    runner(inputs)                      forward with append, sampling, advance: eager, or one graph
    read                                the tokens, which are the next step's inputs already

A step that is called is read at once, by `choose`. One that a pipeline runs is read when the next one runs.

(The loop of plan, run and read is that of nano-vllm and mini-sglang.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config import EngineConfig
from ..errors import LogitsError
from ..kv.blocks import BlockTable, Copy, KVBlockManager
from ..kv.bookkeeping import bookkeeping
from ..models.shape import Model
from ..request.session import InferenceSession
from .device_step import Outcome
from .parts import CopyBlocks, DecodeParts, Rows, Runner
from .ranges import range_for
from .sampling import NO_TOKEN, asked_of, next_tokens


class DecodeStep:
    """Place, copy, plan, run.

    The engine calls it inside `bookkeeping`: only the run, which changes no books, can be interrupted. A block that was
    placed before that stays the session's, and the next step writes into it.
    """

    stages: tuple[str, ...] = ("place", "copy_blocks", "plan", "runner")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.copy_blocks: CopyBlocks = parts.build("copy_blocks", model, kv, config)
        self.rows: Rows = parts.build("rows", model, kv, config)
        self.runner: Runner = parts.build("runner", model, kv, config)
        self.best = self.runner.best
        forward, kv_append = (parts.build(name, model, kv, config) for name in ("forward", "kv_append"))
        self.runner.start(parts.part("device_step")(forward, kv_append, self.rows, self.best))
        self.place, self.plan = kv.place, self.rows.plan
        self.range = range_for(kv.device, config.nvtx)
        self.outcome: Outcome | None = None  # of the last step, if it was called
        self.version = 0  # of its logits: a copy's is not always 0

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        logits, tokens = self.run(sessions)
        with torch.inference_mode(False):  # so that the copy's version tells whether somebody has changed it
            self.outcome = Outcome(logits.clone(), tokens)
        self.version = self.outcome.logits._version
        return self.outcome.logits

    def run(self, sessions: Sequence[InferenceSession], again: Sequence[BlockTable] | None = None) -> Outcome:
        """Tell the device to make one more token for each session; what it makes is there until the next run.

        again: their tables, if they are the sessions of the last run and nobody has read its tokens; else None.
        """
        tables: Sequence[BlockTable] = [session.table for session in sessions] if again is None else again
        with self.range("roseinfer.decode_step_sessions.place"):
            copies: list[Copy] = self.place(tables)
            self.copy_blocks(copies)
        try:
            with self.range("roseinfer.decode_step_sessions.plan"):
                inputs = self.plan(sessions) if again is None else self.plan(sessions, again)
            with self.range("roseinfer.decode_step_sessions.run"):
                outcome = bookkeeping.interruptible(self.runner, inputs, self.rows.sampling)
            self.rows.unread()
        except BaseException:
            self.rows.forget()  # nobody knows how far it came
            raise
        for session, table in zip(sessions, tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        self.outcome = None
        return outcome

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step."""
        made = self._made(sessions, logits)
        tokens = next_tokens(logits, asked_of(sessions, logits.device), self.best) if made is None else made.tokens
        token_ids = tokens.tolist()  # waits for the device
        if NO_TOKEN in token_ids:
            raise LogitsError([row for row, token_id in enumerate(token_ids) if token_id == NO_TOKEN])
        if made is not None:
            self.rows.read(token_ids)
        return token_ids

    def has_read(self, sessions: Sequence[InferenceSession], token_ids: list[int]) -> None:
        """The host has read the tokens of the last run, which was of these sessions."""
        if self.rows.holds(sessions):
            self.rows.read(token_ids)

    def _made(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> Outcome | None:
        """The outcome of the last step, if these are its sessions and its logits, which nobody has changed."""
        made = self.outcome
        if made is None or logits is not made.logits or logits._version != self.version:
            return None
        return made if self.rows.holds(sessions) else None
