"""InferenceSession: one request's tokens, blocks and sampling state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ..config import SamplingParams

Prompt = str | Sequence[int]  # a text, or token ids


@dataclass(slots=True)
class SessionTimes:
    """When things happened to a request, in seconds of `time.perf_counter`."""

    submitted: float = 0.0
    admitted: float = 0.0  # the first time it got its blocks
    tokens: list[float] = field(default_factory=list)  # when each new token was there
    read: list[float] = field(default_factory=list)  # when its reader had each one; empty where nobody streams


def samples_of(params: SamplingParams, n: int) -> tuple[SamplingParams, ...]:
    """What n samples of one prompt are asked for: sample i is drawn with seed + i."""
    return (params, *(replace(params, seed=params.seed + number) for number in range(1, n)))


class SessionState(Enum):
    """What a session is waiting for; the value says it in an error's words."""

    NEW = "is new"  # for its blocks, or for its prefill
    RESERVED = "has its blocks and is not computed yet"  # for its prefill
    READY = "is computed and waits for its next token"  # for `take_tokens`
    RUNNING = "is running"  # for the next decode step
    FREED = "was freed"  # for its blocks, or for its prefill: it is computed again
    FINISHED = "has finished"  # for nothing


@dataclass(slots=True, eq=False)
class InferenceSession:
    """A request inside the engine.

    token_ids: prompt and completion, at most `most_tokens`. K and V of the first `num_cached_tokens` lie in the blocks
    of `table` (None while it holds none): all but the last, and one more for each step in flight. awaits_prefill: its
    blocks are reserved, and not all of its tokens are computed. engine, owner: the `ref` of the engine that made it,
    and of the scheduler that has accepted it, or None. siblings, forks: further samples of its prompt that are asked
    for, and those that its scheduler has forked off it.
    finish_reason: None while it runs, then `stop` (end of text), `length`, `cancelled` or `error` (`LogitsError`).
    """

    prompt_ids: list[int]
    params: SamplingParams
    token_ids: list[int] = field(init=False)
    most_tokens: int = field(init=False, repr=False)
    table: Any = None  # a `kv.blocks.BlockTable`: only the cache and the parts of the decode step look inside
    num_cached_tokens: int = 0
    awaits_prefill: bool = False
    finish_reason: str | None = None
    times: SessionTimes = field(default_factory=SessionTimes)
    siblings: tuple[SamplingParams, ...] = field(default=(), repr=False)
    forks: list[InferenceSession] = field(default_factory=list, repr=False)
    engine: Any = field(default=None, repr=False)
    owner: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.most_tokens = len(self.prompt_ids) + self.params.max_new_tokens

    @property
    def block_ids_per_layer(self) -> Any:
        """The articles' name for the table."""
        return self.table

    @property
    def completion_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def num_missing_tokens(self) -> int:
        """Tokens whose K and V are not computed yet."""
        return len(self.token_ids) - self.num_cached_tokens

    @property
    def samples(self) -> list[InferenceSession]:
        """The session and its forks."""
        return [self, *self.forks]

    @property
    def to_fork(self) -> tuple[SamplingParams, ...]:
        """The siblings that are still to be forked off it."""
        return self.siblings[len(self.forks) :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def awaits_token(self) -> bool:
        """Whether, holding blocks, it waits for a token that a step in flight is making, or has ended."""
        return self.finished or self.num_cached_tokens >= len(self.token_ids)

    @property
    def state(self) -> SessionState:
        """Follows from what the session holds."""
        if self.finish_reason is not None:
            return SessionState.FINISHED
        if self.table is None:
            return SessionState.NEW if len(self.token_ids) == len(self.prompt_ids) else SessionState.FREED
        if self.awaits_prefill:
            return SessionState.RESERVED
        return SessionState.RUNNING if self.num_cached_tokens < len(self.token_ids) else SessionState.READY


def ends_of(eos_token_id: int | Collection[int] | None) -> Collection[int | None]:
    """The token ids that end a text, of one, several or none."""
    return eos_token_id if isinstance(eos_token_id, Collection) else (eos_token_id,)
