"""Who is next: admission policies, and the sessions that go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..request.session import InferenceSession


def fifo(waiting: Sequence[InferenceSession]) -> int:
    """Admission in the order of arrival: the number of the next session to admit."""
    return 0


ADMISSION_POLICIES: dict[str, Callable[[Sequence[InferenceSession]], int]] = {"fifo": fifo}


def those_to_go_on(sessions: Iterable[InferenceSession]) -> list[InferenceSession]:
    """Those that need one more decode step: not a session whose last token the step in flight is already making.

    A session of 3 prompt tokens and 2 new ones may have 5. After its prefill it has 4, and 3 are cached. A launch makes
    that 4: the step in flight makes the fifth, and no other step is needed. So a length stop is planned, and no
    position runs past the context. An end of text is found when the step has landed.
    """
    return [
        s
        for s in sessions
        if s.finish_reason is None
        and (s.num_cached_tokens + 1 < s.most_tokens or s.num_cached_tokens < len(s.token_ids))
    ]


def wants_token(session: InferenceSession) -> bool:
    """Whether a session that holds blocks waits for a token that a step in flight is making, or has ended."""
    return session.finished or session.num_cached_tokens >= len(session.token_ids)
