"""EngineCore: a model, a paged KV cache and the parts of the decode step, put together: what schedulers use."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from operator import index
from typing import Any

import torch

from ..checks import require_a, shown
from ..config import EngineConfig, SamplingParams
from ..decode import BEST, DecodeParts
from ..errors import BlockError, ConfigError, EngineBusy, KVCacheExhausted, LogitsError, RequestError, RosecourseError
from ..kernels.plain_torch import computing, settings_aside
from ..kv.bookkeeping import bookkeeping
from ..kv.prefix_cache import PrefixCache
from ..models.ops import with_ops
from ..models.shape import Model, require_model
from ..models.tokenizer import check_length, encode, longest_token
from ..request.session import InferenceSession, Prompt, append_tokens
from ..request.text import Pieces
from .auditing import audit_cache
from .exclusive import Exclusive
from .landed import Landed, landed_of
from .rules import require_blocks, require_in_step, require_list, require_logits, require_rule, require_rules


class EngineCore:
    """Prefill and decode over sessions; no flags, no globals: two engines with different parts share one model.

    `new_session`, `reserve`, `prefill`, `begin`, `launch`, `land`, `fork` and `free` are what schedulers are made of
    (`take_tokens` is a `begin`, and `decode_step_sessions` a `launch`, that one waits for); `rules` says from which
    state of a session each is allowed. Two threads in them at once are refused with `EngineBusy`. An interrupt splits
    none of them: it comes while the device works, or when the call is complete.
    """

    def __init__(self, model: Model, config: EngineConfig | None = None, parts: DecodeParts = BEST) -> None:
        require_model(model)
        config = EngineConfig() if config is None else config
        require_a(EngineConfig, config, "config")
        require_a(DecodeParts, parts, "parts")
        max_seq_len = config.max_seq_len or model.shape.context
        if max_seq_len > model.shape.context:
            raise ConfigError(
                f"max_seq_len is {shown(max_seq_len)}: the model's context is {model.shape.context} tokens"
            )
        num_blocks = config.num_blocks or config.max_batch_size * config.blocks_for(max_seq_len)
        self.model = model
        self.max_seq_len = max_seq_len
        self.config = replace(config, max_seq_len=max_seq_len, num_blocks=num_blocks)
        # What is made may be changed in place anywhere, so not in inference mode.
        with torch.inference_mode(False), torch.no_grad(), settings_aside(model.device):
            self._build(parts, num_blocks)
        self._fresh: set[InferenceSession] = set()  # prefilled, and no token taken yet
        self.eos_token_id: Any = getattr(model, "eos_token_id", getattr(model.tokenizer, "eos_token_id", None))
        self.pieces = Pieces(model.tokenizer)  # for all who read requests of this engine
        self.exclusive = Exclusive()
        self.ref = weakref.ref(self)  # by which its sessions know it: who is dropped is gone at once
        self._user: Any = None  # the `ref` of the scheduler that is stepping

    def _build(self, parts: DecodeParts, num_blocks: int) -> None:
        """Make the cache and the parts that compute."""
        shape = self.model.shape
        self.kv = parts.cache(
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=self.config.block_size,
            num_blocks=num_blocks,
            dtype=self.model.dtype,
            device=self.model.device,
        )
        self.prefix_cache = PrefixCache(self.kv) if self.config.prefix_cache else None
        computed = with_ops(self.model, parts.ops(self.model, self.config))
        self.decode_step = parts.step(parts, computed, self.kv, self.config)
        self.pipeline = parts.pipeline(self.decode_step, self.kv, self.config)
        self.start = parts.start(self.decode_step, self.pipeline)
        self.prompts = parts.prefill(self.model, self.kv, self.config)
        self.delivery = parts.delivery(self.config)

    @contextmanager
    def used_by(self, scheduler: Any) -> Iterator[None]:
        """The calls in here are those of a scheduler, for the sessions that it has accepted; no other thread comes in.

        Raises `EngineBusy`.
        """
        with self.exclusive:
            before, self._user = self._user, scheduler.ref
            try:
                yield
            finally:
                self._user = before

    def hand_over(self, thread: threading.Thread) -> None:
        """Give the engine to a thread alone, until `exclusive.hand_back`: all others get `EngineBusy`, but for `free`.

        Raises `EngineBusy` where it is in use, or given to a thread already.
        """
        with self.exclusive:
            if self._user is not None:  # this very thread's
                raise EngineBusy("a scheduler is in the middle of a step of this engine: let the step end first")
            self.settle()
            self.exclusive.take(thread)

    # -- sessions -------------------------------------------------------------------------------------------------

    def new_session(self, prompt: Prompt, params: SamplingParams | None = None) -> InferenceSession:
        """A session that has no blocks yet. Raises `RequestError` for what the engine can never serve."""
        params = SamplingParams() if params is None else params
        require_a(SamplingParams, params, "params")
        prompt_ids = self.tokenize(prompt)
        self.check_request(prompt_ids, params)
        return InferenceSession(prompt_ids, params, engine=self.ref)

    def check_request(self, prompt_ids: list[int], params: SamplingParams) -> None:
        """Raise `RequestError` for what the engine can never serve."""
        if not prompt_ids:
            raise RequestError("the prompt is empty: give at least one token")
        bad = [t for t in prompt_ids if not 0 <= t < self.model.shape.vocab_size]
        if bad:
            raise RequestError(
                f"token id {shown(bad[0])} is not in the vocabulary of {self.model.shape.vocab_size} tokens"
            )
        longest = self.max_seq_len
        if len(prompt_ids) >= longest:
            raise RequestError(f"the prompt has {len(prompt_ids)} tokens: the engine takes at most {longest - 1}")
        total = len(prompt_ids) + params.max_new_tokens
        if total > longest:
            raise RequestError(
                f"max_new_tokens is {shown(params.max_new_tokens)}: after a prompt of {len(prompt_ids)} tokens at most "
                f"{longest - len(prompt_ids)} fit into {longest}"
            )
        needed = self.config.blocks_for(total - 1)  # K and V of the last token are never needed
        if needed > self.kv.num_blocks:
            raise RequestError(
                f"a prompt of {len(prompt_ids)} tokens and {params.max_new_tokens} new ones need {needed} KV blocks, "
                f"the pool has {self.kv.num_blocks}: give the engine more blocks, or ask for fewer tokens"
            )

    def tokenize(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt: a text's, or those given. Refuses a text whose length says that it cannot fit."""
        try:
            if isinstance(prompt, str):
                if len(prompt) >= self.max_seq_len:  # else the check can say nothing
                    check_length(prompt, self._longest_token, self.max_seq_len - 1)
                return encode(self.model.tokenizer, prompt)
            if isinstance(prompt, bytes):
                raise TypeError
            return [index(token_id) for token_id in prompt]
        except TypeError:  # the tokenizer's too, for text that no encoding has
            raise RequestError(f"the prompt is {shown(prompt)}: give a text, or a list of token ids") from None

    @cached_property
    def _longest_token(self) -> int | None:
        return longest_token(self.model.tokenizer)

    def reserve(self, session: InferenceSession) -> None:
        """Give a session the blocks that its tokens need, those of a known prefix first."""
        with self.exclusive:
            require_rule("reserve", session, self, self._user)
            shared = self.prefix_cache.lookup(session.token_ids) if self.prefix_cache else []
            session.awaits_prefill = True
            session.table = self.kv.allocate(len(session.token_ids), shared)
            session.num_cached_tokens = len(shared) * self.kv.block_size

    def prefill(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Compute sessions that are new, reserved or freed; returns logits [B, vocab_size] for each next token.

        Raises `KVCacheExhausted` or `BlockError` before anything has changed.
        """
        with self.exclusive, computing(self.model.device):
            require_rules("prefill", sessions, self, self._user)
            if not sessions:
                raise ConfigError("a prefill over 0 sessions: give 1 or more")
            if any(s.table is not None and self.kv.length(s.table) != len(s.token_ids) for s in sessions):
                raise BlockError("the session has got tokens since its blocks were reserved: free it first")
            self._reserve_all([session for session in sessions if session.table is None])
            logits = bookkeeping.interruptible(self.prompts, sessions)
            for session in sessions:
                session.num_cached_tokens = len(session.token_ids)
                session.awaits_prefill = False
            self._fresh.update(sessions)
            return logits

    def _reserve_all(self, sessions: list[InferenceSession]) -> None:
        """Reserve these sessions, or none of them."""
        for number, session in enumerate(sessions):
            try:
                self.reserve(session)
            except BaseException:
                for earlier in reversed(sessions[:number]):
                    self.free(earlier)
                raise

    def decode_step_sessions(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One decode step: returns logits [B, vocab_size]. Raises `KVCacheExhausted` before anything has changed.

        An interrupt in the forward has changed nothing either. Whatever else stops it may leave the token in some
        layers and not in others: free these sessions then, and prefill them again.
        """
        require_list(sessions)
        with self.exclusive, computing(self.model.device):
            self.settle()
            self._require_step(sessions, missing=(1,))
            return self.decode_step(sessions)

    def _require_step(self, sessions: Sequence[InferenceSession], missing: Container[int]) -> None:
        """Raise unless a decode step of these sessions can be made. missing: as in `require_in_step`."""
        if not 0 < len(sessions) <= self.config.max_batch_size:
            raise ConfigError(f"a decode step over {len(sessions)} sessions: 1 to {self.config.max_batch_size} fit")
        require_in_step("decode", sessions, self, self._user, missing)
        if not self.kv.can_append([session.table for session in sessions]):
            many = f"one more token of {len(sessions)} sessions"
            raise KVCacheExhausted(f"no KV blocks for {many}: free or preempt one")

    # -- steps in flight ------------------------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """Decode steps that were launched and have not landed."""
        return len(self.pipeline.in_flight)

    def is_in_flight(self, session: InferenceSession) -> bool:
        """Whether a step in flight writes to the blocks of a session."""
        return any(session in step.members for step in self.pipeline.in_flight)

    def begin(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> Landed:
        """Have the first token of each session chosen, by the logits [B, vocab_size] of its prefill.

        Returns those that the host knows at once; others are in flight, as a decode step's are, and `land` gives them.
        Steps in flight that another scheduler has launched land first.
        """
        with self.exclusive, computing(self.model.device):
            self._settle_for_user()
            if any(map(self.is_in_flight, sessions)):
                self.settle()
            require_in_step("take", sessions, self, self._user, missing=(0,))
            require_logits(logits, len(sessions), self.model.shape.vocab_size)
            token_ids = self.start(sessions, logits, self._user)
            return self._take(sessions, [s.table for s in sessions], token_ids) if token_ids else Landed([], [])

    def launch(self, sessions: Sequence[InferenceSession]) -> None:
        """Start a decode step; `land` gives its tokens. Each session that a step in flight has may be in this one too.

        Raises what `decode_step_sessions` raises, before anything has changed. Steps in flight that another scheduler
        has launched land first.
        """
        require_list(sessions)
        with self.exclusive, computing(self.model.device):
            self._settle_for_user()
            if not self._go_on(sessions):
                newest = self.pipeline.in_flight[-1].members if self.num_in_flight else frozenset()
                ready = [s for s in sessions if s.num_cached_tokens == len(s.token_ids) and s not in newest]
                require_rules("decode", ready, self, self._user)
                self._require_step(sessions, missing=(0, 1))
            try:
                self.pipeline.launch(sessions, self._user)
            except BaseException as error:
                if not isinstance(error, RosecourseError):  # else nothing has changed
                    self.settle()  # what is in flight is in no row any more: the host has to know it
                raise

    def _go_on(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the newest step in flight, which were looked at then, and can go on."""
        if not 0 < self.num_in_flight <= self.pipeline.steps_ahead or self.pipeline.in_flight[-1].sessions != sessions:
            return False
        return not [s for s in sessions if s.finish_reason is not None or s.num_cached_tokens >= self.max_seq_len]

    def land(self) -> Landed:
        """Wait for the oldest step in flight; each of its sessions takes its token, but for those that have ended."""
        with bookkeeping, self.exclusive.lock:
            if not self.num_in_flight:
                raise RequestError("no decode step is in flight: launch one first")
            step, token_ids = self.pipeline.land()
            return self._take(step.sessions, step.tables, token_ids)

    def _take(self, sessions: Sequence[InferenceSession], tables: list[Any], token_ids: list[int]) -> Landed:
        """Each session takes its token, but for those that have ended."""
        landed = landed_of(sessions, tables, token_ids)
        for session in landed.without:
            self._forget_prefixes(session)
        self._give(landed.new_tokens)
        return landed

    def _give(self, new_tokens: Sequence[tuple[InferenceSession, int]]) -> None:
        fresh = [session for session, _ in new_tokens if session in self._fresh] if self._fresh else ()
        for session in fresh:  # its prompt's K and V are numbers: a token could be chosen by them
            self._fresh.discard(session)
            if self.prefix_cache:
                self.prefix_cache.insert(session.prompt_ids, session.table)
        append_tokens(new_tokens, self.eos_token_id)

    def _settle_for_user(self) -> None:
        """What another scheduler has launched lands first."""
        if self.num_in_flight and self.pipeline.in_flight[-1].user is not self._user:
            self.settle()

    def settle(self) -> None:
        """Let all steps in flight land, each with the scheduler that has launched it: the tokens are for that one."""
        with bookkeeping, self.exclusive.lock:
            before = self._user
            try:
                while self.num_in_flight:
                    self._user = self.pipeline.in_flight[0].user
                    scheduler = self._user() if self._user is not None else None
                    (scheduler or self).land()
            finally:
                self._user = before

    def drop(self) -> None:
        """No step is in flight any more, and nobody gets its tokens: free its sessions then, and prefill them again."""
        with bookkeeping, self.exclusive.lock:
            self.pipeline.abandon()

    def can_append(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether the pool has the blocks that one more token of each session needs."""
        with self.exclusive:
            if self.num_in_flight and self.pipeline.in_flight[-1].sessions == sessions:
                return self.kv.can_append(self.pipeline.in_flight[-1].tables)
            require_blocks(sessions, self)
            return self.kv.can_append([session.table for session in sessions])

    def may_need_block(self, session: InferenceSession) -> bool:
        """Whether a session may need one more block: for tokens to come, or as its own copy of one that it shares."""
        require_rule("need", session, self)
        most = len(session.prompt_ids) + session.params.max_new_tokens - 1  # K and V of the last are never needed
        return self.kv.may_need_block(session.table, most)

    def take_tokens(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """Sample each session's next token and append it.

        logits: [B, vocab_size], of the prefill or decode step of these sessions. Raises `LogitsError` before any
        session has taken one; no other prompt will hit the blocks of a session of NaN.
        """
        with self.exclusive, computing(self.model.device):
            require_in_step("take", sessions, self, self._user, missing=(0,))
            require_logits(logits, len(sessions), self.model.shape.vocab_size)
            try:
                token_ids = self.decode_step.choose(sessions, logits)
            except LogitsError as error:
                for row in error.rows:
                    self._forget_prefixes(sessions[row])
                raise
            self._give(list(zip(sessions, token_ids, strict=True)))
            return token_ids

    def _forget_prefixes(self, session: InferenceSession) -> None:
        """No token could be chosen by what was written to its blocks."""
        self._fresh.discard(session)
        if self.prefix_cache:
            self.prefix_cache.discard(session.table)

    def fork(self, session: InferenceSession, params: SamplingParams | None = None) -> InferenceSession:
        """A second session that goes on from where this one is, sharing its blocks until they differ.

        params: its own; None is the same. With the same seed the two draw the same numbers at the same positions.
        """
        require_a(InferenceSession, session, "session")
        if params is not None:
            require_a(SamplingParams, params, "params")
        sibling = InferenceSession(session.prompt_ids, params or session.params, engine=self.ref)
        try:
            with self.exclusive:
                if self.is_in_flight(session):
                    self.settle()
                require_rule("fork", session, self)
                if params is not None:
                    self.check_request(session.prompt_ids, params)
                sibling.token_ids = list(session.token_ids)
                sibling.num_cached_tokens = session.num_cached_tokens
                sibling.table = self.kv.share(session.table)
                return sibling
        except BaseException:
            if sibling.table is not None:  # an interrupt that waited: nobody has got the sibling
                self.free(sibling)
            raise

    def free(self, session: InferenceSession) -> None:
        """Give the session's blocks back; its tokens stay, and a later prefill computes K and V again."""
        with bookkeeping, self.exclusive.lock:  # whoever is refused must still be able to give back what it holds
            require_rule("free", session, self, self._user)
            if self.is_in_flight(session):
                self.settle()
            self.kv.free(session.table)
            self._fresh.discard(session)
            session.table = None
            session.num_cached_tokens = 0
            session.awaits_prefill = False

    def audit(self, sessions: Iterable[InferenceSession]) -> None:
        """Raise `BlockError` unless the cache's books are right; `sessions` must be all that hold blocks in it.

        For tests and for finding faults: it walks over the whole cache, and nothing calls it unasked.
        """
        sessions = list(sessions) if isinstance(sessions, Iterable) else sessions
        with self.exclusive:
            require_rules("audit", sessions, self)
            audit_cache(self.kv, self.prefix_cache, sessions, self.is_in_flight)
