"""InferenceSession: one request's tokens, blocks and sampling state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import SamplingParams
from .sampling import Sampler

Prompt = str | Sequence[int]  # a text, or token ids


@dataclass(slots=True)
class SessionTimes:
    """When things happened to a request, in seconds of `time.perf_counter`."""

    submitted: float = 0.0
    admitted: float = 0.0  # the first time it got its blocks
    tokens: list[float] = field(default_factory=list)  # when each new token was there


@dataclass(slots=True, eq=False)
class InferenceSession:
    """A request inside the engine.

    token_ids: prompt and completion. K and V of the first `num_cached_tokens` of them lie in the blocks of `table`
    (None while it holds none); between two decode steps that is all but the last token.
    engine: the one whose `new_session` or `fork` made it, and accepted its prompt.
    finish_reason: None while it runs, then `stop` (end of text), `length`, `cancelled` or `error` (its logits are NaN).
    """

    prompt_ids: list[int]
    params: SamplingParams
    token_ids: list[int] = field(init=False)
    sampler: Sampler = field(init=False)
    table: Any = None  # a `kv.layout.Table`: only the cache and the parts of the decode step look inside
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    times: SessionTimes = field(default_factory=SessionTimes)
    engine: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.sampler = Sampler(self.params)

    @property
    def block_ids_per_layer(self) -> Any:
        """The articles' name for the table of a cache that keeps a list of block ids for each layer."""
        return self.table

    @property
    def completion_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, token_id: int, eos_token_id: int | None) -> None:
        """Take a new token, and finish if it is the last one."""
        self.token_ids.append(token_id)
        if self.params.stop_on_eos and token_id == eos_token_id:
            self.finish_reason = "stop"
        elif len(self.token_ids) - len(self.prompt_ids) >= self.params.max_new_tokens:
            self.finish_reason = "length"
