"""Whether a cache's books are right, for tests and for finding faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BlockError
from ..kv.prefix_cache import PrefixCache
from ..request.session import InferenceSession


def audit_cache(
    kv: Any,
    prefix_cache: PrefixCache | None,
    sessions: Sequence[InferenceSession],
    is_in_flight: Callable[[InferenceSession], bool],
) -> None:
    """Raise `BlockError` unless the books of a cache are right, in which only these sessions hold blocks.

    is_in_flight: whether a step in flight writes to the blocks of a session.
    """
    holding = [session for session in sessions if session.table is not None]
    tables = [session.table for session in holding]
    kv.audit(tables, prefix_cache.entries() if prefix_cache else ())
    for session, table in zip(holding, tables, strict=True):
        tokens, cached, length = len(session.token_ids), session.num_cached_tokens, kv.length(table)
        most = tokens + is_in_flight(session)  # one too many, of a session of NaN
        if not cached <= length <= most:
            raise BlockError(f"a session has {tokens} tokens and blocks for {length}, and {cached} tokens are computed")
