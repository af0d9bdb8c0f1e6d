"""EngineCore: a model, a paged KV cache and the parts of the decode step, put together and guarded."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import index

import torch

from ..checks import require_a, shown
from ..config import EngineConfig, SamplingParams
from ..decode import BEST, Batch, DecodeParts
from ..errors import BlockError, ConfigError, KVCacheExhausted, RequestError
from ..kv.guards import Guard, bookkeeping, settings_aside
from ..models.shape import Model, require_model
from ..models.tokenizer import check_length, encode, longest_token
from ..request.session import InferenceSession, Prompt, ends_of
from ..request.text import Pieces
from .auditing import audit_cache
from .model_runner import Landed, ModelRunner
from .rules import require_blocks, require_in_step, require_list, require_logits, require_rule, require_rules


class EngineCore:
    """Prefill and decode over sessions; no flags, no globals: two engines with different parts share one model.

    `new_session`, `reserve`, `prefill`, `begin`, `launch`, `land`, `fork` and `free` drive sessions by hand
    (`take_tokens` is a `begin`, and `decode_step_sessions` a `launch`, that one waits for); `rules` says from which
    state of a session each is allowed. Two threads in them at once are refused with `EngineBusy`. An interrupt splits
    none of them: it comes while the device works, or when the call is complete. A scheduler enters `guard` once for
    each of its steps, and calls `runner`, which has the same calls and trusts it.

    runner_class: the kind of runner that the engine makes.
    """

    runner_class: type[ModelRunner] = ModelRunner

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
            runner = self.runner = self.runner_class(model, self.config, parts)
        self.kv, self.prefix_cache, self.prompts = runner.kv, runner.prefix_cache, runner.prompts
        self.decode_step, self.pipeline = runner.decode_step, runner.pipeline
        self.delivery = parts.delivery(self.config)
        self.eos_token_id = getattr(model, "eos_token_id", getattr(model.tokenizer, "eos_token_id", None))
        self.pieces = Pieces(model.tokenizer)  # for all who read requests of this engine
        self.guard = Guard(model.device)
        self.ref = weakref.ref(self)  # by which its sessions know it: who is dropped is gone at once

    @property
    def eos_token_id(self) -> int | Collection[int] | None:
        """The token ids that end a text: one, several or none."""
        return self._eos_token_id

    @eos_token_id.setter
    def eos_token_id(self, value: int | Collection[int] | None) -> None:
        self._eos_token_id, self.runner.ends = value, ends_of(value)

    def hand_over(self, thread: threading.Thread) -> None:
        """Give the engine to a thread alone, until `guard.hand_back`: all others get `EngineBusy`, but for `free`.

        Raises `EngineBusy` where it is in use, or given to a thread already.
        """
        with self.guard:
            self.guard.take(thread)
            try:
                self.runner.settle()
            except BaseException:
                self.guard.hand_back()
                raise

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
        with self.guard:
            require_rule("reserve", session, self)
            self.runner.reserve(session)

    def prefill(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Compute sessions that are new, reserved or freed; returns logits [B, vocab_size] for each next token.

        Raises `KVCacheExhausted` or `BlockError` before anything has changed.
        """
        with self.guard:
            require_rules("prefill", sessions, self)
            if not sessions:
                raise ConfigError("a prefill over 0 sessions: give 1 or more")
            if any(s.table is not None and self.kv.length(s.table) != len(s.token_ids) for s in sessions):
                raise BlockError("the session has got tokens since its blocks were reserved: free it first")
            self._reserve_all([session for session in sessions if session.table is None])
            return self.runner.prefill(sessions)

    def _reserve_all(self, sessions: list[InferenceSession]) -> None:
        """Reserve these sessions, or none of them."""
        for number, session in enumerate(sessions):
            try:
                self.runner.reserve(session)
            except BaseException:
                for earlier in reversed(sessions[:number]):
                    self.runner.free(earlier)
                raise

    def decode_step_sessions(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One decode step: returns logits [B, vocab_size]. Raises `KVCacheExhausted` before anything has changed.

        An interrupt in the forward has changed nothing either. Whatever else stops it may leave the token in some
        layers and not in others: free these sessions then, and prefill them again.
        """
        require_list(sessions)
        with self.guard:
            self.settle()
            self._require_step(sessions, missing=(1,))
            return self.decode_step(sessions)

    def _require_step(self, sessions: Sequence[InferenceSession], missing: Container[int]) -> None:
        """Raise unless a decode step of these sessions can be made. missing: as in `require_in_step`."""
        if not 0 < len(sessions) <= self.config.max_batch_size:
            raise ConfigError(f"a decode step over {len(sessions)} sessions: 1 to {self.config.max_batch_size} fit")
        require_in_step("decode", sessions, self, missing)
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
        return self.runner.is_in_flight(session)

    def begin(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> Landed:
        """Have the first token of each session chosen, by the logits [B, vocab_size] of its prefill.

        Returns those that the host knows at once; others are in flight, as a decode step's are, and `land` gives them.
        Steps in flight that another scheduler has launched land first.
        """
        with self.guard:
            if self.num_in_flight and (
                self.pipeline.in_flight[-1].user is not None or any(map(self.is_in_flight, sessions))
            ):
                self.settle()
            require_in_step("take", sessions, self, missing=(0,))
            require_logits(logits, len(sessions), self.model.shape.vocab_size)
            return self.runner.begin(Batch.of(sessions), logits)

    def launch(self, sessions: Sequence[InferenceSession]) -> None:
        """Start a decode step; `land` gives its tokens. Each session that a step in flight has may be in this one too.

        Raises what `decode_step_sessions` raises, before anything has changed. Steps in flight that another scheduler
        has launched land first.
        """
        require_list(sessions)
        with self.guard:
            in_flight = self.pipeline.in_flight
            if in_flight and in_flight[-1].user is not None:
                self.settle()
            newest = in_flight[-1].members if in_flight else frozenset()
            ready = [s for s in sessions if s.num_cached_tokens == len(s.token_ids) and s not in newest]
            require_rules("decode", ready, self)
            self._require_step(sessions, missing=(0, 1))
            self.runner.launch(Batch.of(sessions))

    def land(self) -> Landed:
        """Wait for the oldest step in flight; each of its sessions takes its token, but for those that have ended."""
        with bookkeeping, self.guard.lock:
            if not self.num_in_flight:
                raise RequestError("no decode step is in flight: launch one first")
            return self.runner.land()

    def settle(self) -> None:
        """Let all steps in flight land, each with the scheduler that has launched it: the tokens are for that one."""
        with bookkeeping, self.guard.lock:
            self.runner.settle()

    def drop(self) -> None:
        """No step is in flight any more, and nobody gets its tokens: free its sessions then, and prefill them again."""
        with bookkeeping, self.guard.lock:
            self.runner.drop()

    def can_append(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether the pool has the blocks that one more token of each session needs."""
        with self.guard:
            require_blocks(sessions, self)
            return self.kv.can_append([session.table for session in sessions])

    def may_need_block(self, session: InferenceSession) -> bool:
        """Whether a session may need one more block: for tokens to come, or as its own copy of one that it shares."""
        require_rule("need", session, self)
        return self.runner.may_need_block(session)

    def take_tokens(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """Sample each session's next token and append it.

        logits: [B, vocab_size], of the prefill or decode step of these sessions. Raises `LogitsError` before any
        session has taken one; no other prompt will hit the blocks of a session of NaN.
        """
        with self.guard:
            require_in_step("take", sessions, self, missing=(0,))
            require_logits(logits, len(sessions), self.model.shape.vocab_size)
            return self.runner.choose(sessions, logits)

    def fork(self, session: InferenceSession, params: SamplingParams | None = None) -> InferenceSession:
        """A second session that goes on from where this one is, sharing its blocks until they differ.

        params: its own; None is the same. With the same seed the two draw the same numbers at the same positions.
        """
        require_a(InferenceSession, session, "session")
        if params is not None:
            require_a(SamplingParams, params, "params")
        sibling = None
        try:
            with self.guard:
                if self.is_in_flight(session):
                    self.settle()
                require_rule("fork", session, self)
                if params is not None:
                    self.check_request(session.prompt_ids, params)
                sibling = self.runner.fork(session, params or session.params)
                return sibling
        except BaseException:
            if sibling is not None:  # an interrupt that waited: nobody has got the sibling
                self.free(sibling)
            raise

    def free(self, session: InferenceSession) -> None:
        """Give the session's blocks back; its tokens stay, and a later prefill computes K and V again."""
        with bookkeeping, self.guard.lock:  # whoever is refused must still be able to give back what it holds
            require_rule("free", session, self)
            self.runner.free(session)

    def audit(self, sessions: Iterable[InferenceSession]) -> None:
        """Raise `BlockError` unless the cache's books are right; `sessions` must be all that hold blocks in it.

        For tests and for finding faults: it walks over the whole cache, and nothing calls it unasked.
        """
        sessions = list(sessions) if isinstance(sessions, Iterable) else sessions
        with self.guard:
            require_rules("audit", sessions, self)
            audit_cache(self.kv, self.prefix_cache, sessions, self.is_in_flight)
