"""InferenceEngine: a model, a paged KV cache and the parts of the decode step, put together and guarded."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from operator import index
from typing import Any

import numpy as np
import torch

from ..checks import is_count, require, require_a, shown
from ..config import EngineConfig, SamplingParams
from ..decode import BEST, Batch, DecodeParts
from ..errors import BlockError, ConfigError, KVCacheExhausted, LogitsError, RequestError
from ..kv.guards import Guard, bookkeeping
from ..models.encoding import check_length, encode, longest_token
from ..models.shape import Model, require_model
from ..request.session import InferenceSession, Prompt, ends_of, samples_of
from ..request.text import Pieces, StreamedToken, TextDecoder
from .model_runner import Landed, ModelRunner
from .rules import (
    require_blocks,
    require_in_step,
    require_list,
    require_logits,
    require_own,
    require_rule,
    require_rules,
)
from .scheduler import OnlineScheduler


@dataclass(frozen=True)
class Generation:
    """What came of one prompt. finish_reason: `stop` (end of text), `length` or `error` (its logits became NaN)."""

    prompt: Prompt
    token_ids: list[int]  # the completion alone
    text: str
    finish_reason: str


def prompts_of(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list: a list of token ids is one prompt, and so is a text, or a row of a tensor."""
    if isinstance(prompts, (torch.Tensor, np.ndarray)):
        prompts = prompts.tolist()
    elif isinstance(prompts, Iterable) and not isinstance(prompts, (str, bytes)):
        prompts = list(prompts)
    several = isinstance(prompts, list) and not any(isinstance(prompt, Integral) for prompt in prompts)
    return prompts if several else [prompts]


class InferenceEngine:
    """`generate` completes prompts, `stream` yields tokens as they come; two engines may share one model.

    `new_session`, `reserve`, `prefill`, `begin`, `launch`, `land`, `fork` and `free` drive sessions by hand
    (`take_tokens` is a `begin`, and `decode_step_sessions` a `launch`, that one waits for); `engine.rules` says from
    which state of a session each is allowed. Two threads at once get `EngineBusy`. An interrupt splits none of them. A
    scheduler enters `guard` once for each of its steps, and calls `runner`, which has the same calls and trusts it.
    """

    runner_class: type[ModelRunner] = ModelRunner  # the kind of runner that the engine makes

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
        self.model, self.max_seq_len = model, max_seq_len
        self.config = replace(config, max_seq_len=max_seq_len, num_blocks=num_blocks)
        # What is made may be changed in place anywhere, so not in inference mode.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(model.device.type, enabled=False):
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

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        n: int = 1,
    ) -> list[Generation]:
        """Complete one prompt or several, as many at a time as the engine holds; results in the prompts' order.

        A prompt is a text or a list of token ids; params: one for all, or one for each. n: samples of each prompt,
        which is computed once for all of them; sample i is drawn with the params' seed + i. Sample i of prompt p is
        result p * n + i.
        """
        require(is_count(n), f"n is {shown(n)}: give 1 or more samples of each prompt")
        listed = prompts_of(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(listed)
        if len(each) != len(listed):
            raise RequestError(f"{len(listed)} prompts and {len(each)} params: give one for all, or one for each")
        with self.guard:
            sessions = [self.new_session(prompt, p) for prompt, p in zip(listed, each, strict=True)]
            scheduler = OnlineScheduler(self)
            try:
                for session in sessions:
                    scheduler.submit(session, samples_of(session.params, n)[1:])
                scheduler.run()
            finally:  # whatever stops it leaves no blocks behind
                for sample in (sample for session in sessions for sample in session.samples):
                    scheduler.cancel(sample)
        return [
            Generation(prompt, s.completion_ids, self.detokenize(s.completion_ids), str(s.finish_reason))
            for prompt, session in zip(listed, sessions, strict=True)
            for s in session.samples
        ]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamedToken]:
        """Complete one prompt; yields each token, with its text, as it comes."""
        with self.guard:  # here, and not only when the first token is read
            session = self.new_session(prompt, params)
        return self._stream(session)

    def _stream(self, session: InferenceSession) -> Iterator[StreamedToken]:
        scheduler = OnlineScheduler(self)
        scheduler.submit(session)
        decoder = TextDecoder(self.pieces)
        try:
            try:
                while scheduler.has_work:
                    for _, token_id in scheduler.step():
                        yield decoder.token(token_id, session.finish_reason)
                if session.finish_reason == "error":
                    raise LogitsError([0])
            finally:  # a reader that goes away leaves no blocks behind
                scheduler.cancel(session)
        finally:  # nor does an interrupt just before that call
            scheduler.cancel(session)

    def detokenize(self, token_ids: list[int]) -> str:
        return self.model.tokenizer.decode(token_ids, skip_special_tokens=True)

    def new_session(self, prompt: Prompt, params: SamplingParams | None = None) -> InferenceSession:
        """A session without blocks. Raises `RequestError` for what the engine can never serve."""
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
            fresh = [session for session in sessions if session.table is None]
            try:
                for session in fresh:
                    self.runner.reserve(session)
            except BaseException:
                for session in reversed(fresh):
                    if session.table is not None:
                        self.runner.free(session)
                raise
            return self.runner.prefill(sessions)

    def decode_step_sessions(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One decode step: returns logits [B, vocab_size]. Raises `KVCacheExhausted` before anything has changed.

        A fault inside may leave the token in some layers and not in others: free these sessions then.
        """
        require_list(sessions)
        with self.guard:
            self.settle()
            self._require_step(sessions, missing=(1,))
            return self.decode_step(sessions)

    def _require_step(self, sessions: Sequence[InferenceSession], missing: Collection[int]) -> None:
        if not 0 < len(sessions) <= self.config.max_batch_size:
            raise ConfigError(f"a decode step over {len(sessions)} sessions: 1 to {self.config.max_batch_size} fit")
        require_in_step("decode", sessions, self, missing)
        if not self.kv.can_append([session.table for session in sessions]):
            raise KVCacheExhausted(f"no KV blocks for one more token of {len(sessions)} sessions: free or preempt one")

    @property
    def num_in_flight(self) -> int:
        """Decode steps that were launched and have not landed."""
        return len(self.pipeline.in_flight)

    def begin(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> Landed:
        """Have the first token of each session chosen, by the logits [B, vocab_size] of its prefill.

        Returns those that the host knows at once; others are in flight, and `land` gives them. What another scheduler
        has launched lands first.
        """
        with self.guard:
            if self.num_in_flight and (
                self.pipeline.in_flight[-1].user is not None or any(map(self.runner.is_in_flight, sessions))
            ):
                self.settle()
            require_in_step("take", sessions, self, missing=(0,))
            require_logits(logits, len(sessions), self.model.shape.vocab_size)
            return self.runner.begin(Batch.of(sessions), logits)

    def launch(self, sessions: Sequence[InferenceSession]) -> None:
        """Start a decode step; `land` gives its tokens. Each session that a step in flight has may be in this one too.

        Raises what `decode_step_sessions` raises. What another scheduler has launched lands first.
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
        """Wait for the oldest step in flight; its sessions take their tokens, but for those that have ended."""
        with bookkeeping, self.guard.lock:
            if not self.num_in_flight:
                raise RequestError("no decode step is in flight: launch one first")
            return self.runner.land()

    def settle(self) -> None:
        """Let all steps in flight land, each with the scheduler that has launched it."""
        with bookkeeping, self.guard.lock:
            self.runner.settle()

    def take_tokens(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """Sample each session's next token and append it.

        logits: [B, vocab_size], of the prefill or decode step of these sessions. Raises `LogitsError` before any
        session has taken one.
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
                if self.runner.is_in_flight(session):
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
            require_blocks(session, self, by_hand=True)
            self.runner.free(session)

    def audit(self, sessions: Sequence[InferenceSession]) -> None:
        """Raise `BlockError` unless the cache's books are right; `sessions` must be all that hold blocks in it."""
        with self.guard:
            require_list(sessions)
            for session in sessions:
                require_own(session, self)
            holding = [session for session in sessions if session.table is not None]
            entries = self.prefix_cache.entries() if self.prefix_cache else ()
            self.kv.audit([session.table for session in holding], entries)
            for session in holding:
                tokens, cached = len(session.token_ids), session.num_cached_tokens
                length = self.kv.length(session.table)
                if (
                    not cached <= length <= tokens + self.runner.is_in_flight(session)
                ):  # one too many, of a session of NaN
                    raise BlockError(f"a session of {tokens} tokens has blocks for {length}, and {cached} are computed")

    def hand_over(self, thread: threading.Thread) -> None:
        """Give the engine to a thread alone, until `guard.hand_back`. Raises `EngineBusy` where another has it."""
        with self.guard:
            self.guard.take(thread)
            try:
                self.runner.settle()
            except BaseException:
                self.guard.hand_back()
                raise
