"""InferenceEngine: the engine as users have it, `generate` and `stream` over a scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch

from ..checks import is_count, require, shown
from ..config import SamplingParams
from ..errors import LogitsError, RequestError
from ..request.session import InferenceSession, Prompt, samples_of
from ..request.text import StreamedToken, TextDecoder
from .core import EngineCore
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


class InferenceEngine(EngineCore):
    """An engine for users: `generate` completes prompts, `stream` yields tokens as they come.

    `EngineCore` has what schedulers are made of: sessions, prefill, the decode step.
    """

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        n: int = 1,
    ) -> list[Generation]:
        """Complete one prompt or several, as many at a time as the engine holds; results in the prompts' order.

        A prompt is a text or a list of token ids; params: one for all, or one for each. n: samples of each prompt,
        which is computed once for all of them; sample i is drawn with the params' seed + i, and is the completion of a
        request of its own with that seed. Sample i of prompt p is result p * n + i.
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
