"""The decode step of lesson 066: plan on the host, run on the device, wait, read.

    copies = kv.place(tables)           a block for each session's next slot, copy-on-write
    copy_blocks(copies)
    inputs = plan(sessions)             who sits in which row; uploads only what has changed
    runner(inputs)                      forward with append, sampling, advance: eager, or one graph
    choose(sessions, logits)            reads the tokens, which are the next step's inputs already

(The loop of plan, run and read is that of nano-vllm and mini-sglang.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...decode.device_step import Outcome
from ...decode.parts import CopyBlocks, DecodeParts, Rows, Runner
from ...decode.ranges import range_for
from ...decode.sampling import NO_TOKEN, asked_of, next_tokens
from ...errors import LogitsError
from ...kv.bookkeeping import bookkeeping
from ...kv.one_table import BlockTable, Copy, KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession


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
        self.outcome: Outcome | None = None  # of the last step
        self.version = 0  # of its logits: a copy's is not always 0

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
            self.rows.unread()
        except BaseException:
            self.rows.forget()  # nobody knows how far it came
            raise
        for session, table in zip(sessions, tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        with torch.inference_mode(False):  # so that the copy's version tells whether somebody has changed it
            self.outcome = Outcome(logits.clone(), tokens)
        self.version = self.outcome.logits._version
        return self.outcome.logits

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

    def _made(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> Outcome | None:
        """The outcome of the last step, if these are its sessions and its logits, which nobody has changed."""
        made = self.outcome
        if made is None or logits is not made.logits or logits._version != self.version:
            return None
        return made if self.rows.holds(sessions) else None
