"""ModelRunner: brings batches to the device, and their tokens back. It trusts whoever calls it.

Schedulers call it inside `guards.Guard`; `InferenceEngine` does for sessions that are driven by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from ..checks import require
from ..config import EngineConfig, SamplingParams
from ..decode import Batch, DecodeParts
from ..decode.chunks import MixedStep
from ..decode.sampling import NO_TOKEN, tokens_of_each
from ..errors import LogitsError, RosecourseError
from ..kv.guards import bookkeeping
from ..kv.prefix_cache import PrefixCache
from ..models.ops import with_ops
from ..models.shape import Model
from ..request.session import InferenceSession

NO_CHUNKS = "max_num_batched_tokens needs the pipeline of lesson 068 or later: give None, or the parts of a later rung"


class Landed(NamedTuple):
    """What the host has read of a decode step, or of a prefill."""

    new_tokens: list[tuple[InferenceSession, int]]
    without: list[InferenceSession]  # those that no token could be chosen for, with logits of NaN


class ModelRunner:
    """The cache, and the parts that compute. Its callers are inside `bookkeeping`, one at a time."""

    def __init__(self, model: Model, config: EngineConfig, parts: DecodeParts) -> None:
        self.kv = parts.cache(
            num_layers=model.shape.num_layers,
            num_kv_heads=model.shape.num_kv_heads,
            head_dim=model.shape.head_dim,
            block_size=config.block_size,
            num_blocks=config.num_blocks or 0,  # an engine says how many
            dtype=model.dtype,
            device=model.device,
        )
        self.prefix_cache = PrefixCache(self.kv) if config.prefix_cache else None
        self.decode_step = parts.step(parts, with_ops(model, parts.ops(model, config)), self.kv, config)
        self.pipeline = parts.pipeline(self.decode_step, self.kv, config)
        self.prompts = parts.prefill(model, self.kv, config)
        if config.max_num_batched_tokens is not None:
            require(hasattr(self.pipeline, "begin"), NO_CHUNKS)
            self.fill = parts.fill(config.max_num_batched_tokens)
            self.mixed_step = MixedStep(self.kv, self.decode_step, self.prompts)
        self.ends: Collection[int | None] = ()  # the token ids that end a text
        self._fresh: set[InferenceSession] = set()  # prefilled, and no token taken yet

    def reserve(self, session: InferenceSession) -> None:
        """Give a session the blocks that its tokens need, those of a known prefix first."""
        shared = self.prefix_cache.lookup(session.token_ids) if self.prefix_cache else []
        session.awaits_prefill = True
        session.table = self.kv.allocate(len(session.token_ids), shared)
        session.num_cached_tokens = len(shared) * self.kv.block_size

    def may_need_block(self, session: InferenceSession) -> bool:
        """Whether a session may need one more block: for tokens to come, or as its own copy of a shared one."""
        return self.kv.may_need_block(session.table, session.most_tokens - 1)  # K and V of the last are never needed

    def fork(self, session: InferenceSession, params: SamplingParams) -> InferenceSession:
        """A second session that goes on from where this one is, which is not in flight."""
        sibling = InferenceSession(session.prompt_ids, params, engine=session.engine)
        sibling.token_ids = list(session.token_ids)
        sibling.most_tokens = max(sibling.most_tokens, len(session.token_ids) + 1)
        sibling.num_cached_tokens = session.num_cached_tokens
        sibling.table = self.kv.share(session.table)
        return sibling

    def free(self, session: InferenceSession) -> None:
        """Give the session's blocks back; its tokens stay."""
        if self.is_in_flight(session):
            self.settle()
        self.kv.free(session.table)
        self._fresh.discard(session)
        session.table = None
        session.num_cached_tokens = 0
        session.awaits_prefill = False

    def prefill(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Compute sessions that are reserved; returns logits [B, vocab_size] for each next token."""
        logits = bookkeeping.interruptible(self.prompts, sessions)
        for session in sessions:
            session.num_cached_tokens = len(session.token_ids)
        self._are_computed(sessions)
        return logits

    def mix(self, decoding: Batch, chunks: Mapping[InferenceSession, int]) -> torch.Tensor:
        """One step over sessions that decode and over chunks of prompts; see `MixedStep`."""
        logits = self.mixed_step(decoding, chunks)
        self._are_computed([session for session in chunks if not session.num_missing_tokens])
        return logits

    def _are_computed(self, sessions: Sequence[InferenceSession]) -> None:
        for session in sessions:
            session.awaits_prefill = False
        self._fresh.update(sessions)

    def begin(self, batch: Batch, logits: torch.Tensor) -> Landed:
        """Have the first token of each session chosen; see `InferenceEngine.begin`."""
        self._settle_others(batch)
        if hasattr(self.pipeline, "begin"):
            self.pipeline.begin(batch, logits)
            return Landed([], [])
        return self.take(batch, tokens_of_each(self.decode_step, batch.sessions, logits))

    def launch(self, batch: Batch) -> None:
        """Start a decode step; see `InferenceEngine.launch`."""
        self._settle_others(batch)
        try:
            self.pipeline.launch(batch)
        except BaseException as error:
            if not isinstance(error, RosecourseError):  # else nothing has changed
                self.settle()  # what is in flight is in no row any more: the host has to know it
            raise

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """Each session takes its next token, which the host waits for; see `InferenceEngine.take_tokens`."""
        try:
            token_ids = self.decode_step.choose(sessions, logits)
        except LogitsError as error:
            for row in error.rows:
                self._forget_prefixes(sessions[row])
            raise
        self.take(Batch.of(sessions), token_ids)
        return token_ids

    def _settle_others(self, batch: Batch) -> None:
        """What another scheduler has launched lands first."""
        if self.pipeline.in_flight and self.pipeline.in_flight[-1].user is not batch.user:
            self.settle()

    def is_in_flight(self, session: InferenceSession) -> bool:
        """Whether a step in flight writes to the blocks of a session."""
        return any(session in batch.members for batch in self.pipeline.in_flight)

    def land(self) -> Landed:
        """Wait for the oldest batch in flight; each of its sessions takes its token, but for those that have ended."""
        return self.take(*self.pipeline.land())

    def settle(self) -> None:
        """Let all batches in flight land, each with the scheduler that has launched it: the tokens are for that one."""
        while self.pipeline.in_flight:
            user = self.pipeline.in_flight[0].user
            ((user and user()) or self).land()

    def drop(self) -> None:
        """Nobody gets the tokens of steps in flight: free their sessions then, and prefill them again."""
        self.pipeline.abandon()

    def take(self, batch: Batch, token_ids: list[int]) -> Landed:
        """Each session takes its token, but for those that have ended, or lost the blocks that they had at the launch.

        token_ids: NO_TOKEN for some.
        """
        landed = Landed([], [])
        for session, table, token_id in zip(batch.sessions, batch.tables, token_ids, strict=True):
            if session.finish_reason is not None or session.table is not table:
                continue
            if token_id == NO_TOKEN:
                self._forget_prefixes(session)
                landed.without.append(session)
                continue
            if session in self._fresh:
                self._keep_prefixes(session)
            landed.new_tokens.append((session, token_id))
            session.token_ids.append(token_id)
            if token_id in self.ends and session.params.stop_on_eos:
                session.finish_reason = "stop"
            elif len(session.token_ids) >= session.most_tokens:
                session.finish_reason = "length"
        return landed

    def _keep_prefixes(self, session: InferenceSession) -> None:
        """The K and V of a prompt are numbers: a token could be chosen by them."""
        if self.prefix_cache:
            self.prefix_cache.insert(session.prompt_ids, session.table)
        self._fresh.discard(session)

    def _forget_prefixes(self, session: InferenceSession) -> None:
        """No token could be chosen by what was written to its blocks."""
        self._fresh.discard(session)
        if self.prefix_cache:
            self.prefix_cache.discard(session.table)
