"""What the server and the engine process tell each other. Requests have numbers, which the server gives them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..config import SamplingParams


class Submit(NamedTuple):
    number: int
    prompt_ids: list[int]
    params: SamplingParams


class Cancel(NamedTuple):
    number: int


class Ready(NamedTuple):
    """The first message of the engine process."""

    name: str
    tokenizer: Any
    max_seq_len: int
    num_blocks: int


class Step(NamedTuple):
    """What came of one step. tokens: (number, token id, finish reason). errors: (number, HTTP status, why)."""

    tokens: list[tuple[int, int, str | None]]
    errors: list[tuple[int, int, str]]
    blocks_in_use: int
