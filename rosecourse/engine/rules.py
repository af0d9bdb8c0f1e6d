"""Which call is allowed for which session, asked before a call has changed anything."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch

from ..checks import require, require_a, shown
from ..config import SamplingParams
from ..errors import BlockError, ConfigError, RequestError
from ..request.session import InferenceSession, SessionState

NEW, RESERVED, READY, RUNNING, FREED, FINISHED = SessionState

RULES = {  # from which states a call is allowed, and what is raised for the others
    "reserve": (
        {NEW, FREED},
        BlockError,
        "the session holds blocks already, or is done: free it before it is computed again, or make a new one",
    ),
    "prefill": (
        {NEW, RESERVED, FREED},
        BlockError,
        "only sessions that are not computed can be prefilled: free it first, or make a new one",
    ),
    "decode": (
        {RUNNING},
        RequestError,
        "only a session that has taken its token can be decoded: prefill it, and `take_tokens`, or make a new one",
    ),
    "take": (
        {READY},
        RequestError,
        "a session takes one token after each prefill or decode step: compute it first, or make a new one",
    ),
    "fork": ({READY, RUNNING}, RequestError, "only a running session can be forked: prefill it, or make a new one"),
    "submit": (
        {NEW, FREED, RUNNING},
        RequestError,
        "only a new session, a fork of a running one or a freed one can be submitted: free it first, or make a new one",
    ),
}


def require_own(session: InferenceSession, engine: Any, by_hand: bool = False) -> None:
    """Raise unless it is a session of this engine, and, by_hand, one that no scheduler has accepted."""
    require_a(InferenceSession, session, "session")
    if session.engine is not engine.ref:
        raise RequestError(
            "the session is another engine's: use that engine, or make one with this engine's `new_session`"
        )
    if by_hand and session.owner is not None:
        raise RequestError(
            "the session is queued, running or finished already in a scheduler: leave it to that, or make a new one"
        )


def require_blocks(session: InferenceSession, engine: Any, by_hand: bool) -> None:
    """`require_own`, and the session holds blocks."""
    require_own(session, engine, by_hand)
    if session.table is None:
        raise BlockError(
            f"the session holds no blocks: it was freed before, or never computed (this one {session.state.value})"
        )


def require_rule(call: str, session: InferenceSession, engine: Any) -> None:
    """Raise unless a call of RULES is allowed for a session now. engine: whose call it is."""
    require_own(session, engine, by_hand=call != "fork")
    states, error, says = RULES[call]
    if session.state not in states:
        raise error(f"{says} (this one {session.state.value})")


def require_list(sessions: Sequence[InferenceSession]) -> None:
    if not isinstance(sessions, Sequence) or isinstance(sessions, (str, bytes)):
        raise ConfigError(f"sessions is {shown(sessions)}: give a list of sessions")


def require_rules(call: str, sessions: Sequence[InferenceSession], engine: Any) -> None:
    """The same for a batch, in which each session may be once."""
    require_list(sessions)
    for session in sessions:
        require_rule(call, session, engine)
    if len(set(sessions)) < len(sessions):
        raise BlockError("a batch holds blocks already that it asks for again: name each session once")


def require_in_step(call: str, sessions: Sequence[InferenceSession], engine: Any, missing: Container[int]) -> None:
    """`require_rules` for the two calls of each step, which cost next to nothing where all is well.

    missing: how many of a session's tokens may be without K and V.
    """
    longest, ref = engine.max_seq_len, engine.ref
    try:
        if len(set(sessions)) == len(sessions) and all(
            s.engine is ref
            and s.owner is None
            and s.table is not None
            and not s.awaits_prefill
            and s.finish_reason is None
            and s.num_cached_tokens < longest
            and len(s.token_ids) - s.num_cached_tokens in missing
            for s in sessions
        ):
            return
    except (AttributeError, TypeError):  # something else than sessions
        pass
    require_rules(call, sessions, engine)
    for session in sessions:
        tokens, cached = len(session.token_ids), session.num_cached_tokens
        if cached >= longest:
            raise RequestError(f"the session has {tokens} tokens: max_seq_len is {longest}, make a new one")
        if tokens - cached not in missing:
            raise RequestError(
                f"the session has {tokens} tokens, {cached} of them computed: let it take its token, or decode it first"
            )


def require_siblings(session: InferenceSession, siblings: Sequence[SamplingParams], engine: Any) -> None:
    """Raise `RequestError` or `ConfigError` for samples that can never be served."""
    require(
        isinstance(siblings, Sequence) and not isinstance(siblings, (str, bytes)),
        f"siblings is {shown(siblings)}: give a list of SamplingParams, one for each further sample",
    )
    if siblings and session.state is not NEW:
        raise RequestError(
            f"samples are forked off a session before its first token (this one {session.state.value}): submit a "
            "new session with them"
        )
    for params in siblings:
        require_a(SamplingParams, params, "each of the siblings")
        engine.check_request(session.prompt_ids, params)


def require_logits(logits: torch.Tensor, batch: int, vocab_size: int) -> None:
    """Raise `ConfigError` unless these are the logits [batch, vocab_size] of a batch."""
    is_tensor = isinstance(logits, torch.Tensor)
    if not is_tensor or logits.shape != (batch, vocab_size) or not logits.is_floating_point():
        found = f"a tensor {list(logits.shape)} of {logits.dtype}" if is_tensor else shown(logits)
        raise ConfigError(f"logits is {found}: give the [{batch}, {vocab_size}] of the prefill or the decode step")
