"""Landed: what a decode step, or a prefill, has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..decode.sampling import NO_TOKEN
from ..request.session import InferenceSession


class Landed(NamedTuple):
    """What the host has read.

    new_tokens: of the sessions, in their order. without: those that no token could be chosen for, with logits of NaN.
    """

    new_tokens: list[tuple[InferenceSession, int]]
    without: list[InferenceSession]


def landed_of(sessions: Sequence[InferenceSession], tables: Sequence[Any], token_ids: Sequence[int]) -> Landed:
    """The tokens of sessions, NO_TOKEN for some, that had these tables when they were computed.

    Of a session that has ended since then, or has lost its blocks, it is one token too many.
    """
    made = zip(sessions, tables, token_ids, strict=True)
    taken = [(s, t) for s, table, t in made if s.finish_reason is None and s.table is table]
    if NO_TOKEN not in token_ids:
        return Landed(taken, [])
    return Landed([(s, t) for s, t in taken if t != NO_TOKEN], [s for s, t in taken if t == NO_TOKEN])
