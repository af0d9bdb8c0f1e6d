"""Which call is allowed for which session: the one table of it, asked before a call has changed anything."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..checks import require, require_a, shown
from ..config import SamplingParams
from ..errors import BlockError, ConfigError, RequestError, RosecourseError
from ..request.session import InferenceSession, SessionState

NEW, RESERVED, READY, RUNNING, FREED, FINISHED = SessionState


class Rule(NamedTuple):
    """From which states a call is allowed, and what is raised for the others."""

    states: frozenset[SessionState]
    error: type[RosecourseError]
    says: str
    needs_blocks: bool = False  # a finished session may hold blocks, or none
    for_all: bool = False  # for a session, too, that a scheduler has accepted


RULES: Mapping[str, Rule] = {
    "reserve": Rule(
        frozenset({NEW, FREED}),
        BlockError,
        "the session holds blocks already, or is done: free it before it is computed again, or make a new one",
    ),
    "prefill": Rule(
        frozenset({NEW, RESERVED, FREED}),
        BlockError,
        "only sessions that are not computed can be prefilled: free it first, or make a new one",
    ),
    "decode": Rule(
        frozenset({RUNNING}),
        RequestError,
        "only a session that has taken its token can be decoded: prefill it, and `take_tokens`, or make a new one",
    ),
    "take": Rule(
        frozenset({READY}),
        RequestError,
        "a session takes one token after each prefill or decode step: compute it first, or make a new one",
    ),
    "fork": Rule(
        frozenset({READY, RUNNING}),
        RequestError,
        "only a running session can be forked: prefill it, or make a new one",
        for_all=True,
    ),
    "submit": Rule(
        frozenset({NEW, FREED, RUNNING}),
        RequestError,
        "only a new session, a fork of a running one or a freed one can be submitted: free it first, or make a new one",
    ),
    "free": Rule(
        frozenset({RESERVED, READY, RUNNING, FINISHED}),
        BlockError,
        "the session holds no blocks: it was freed before, or never computed",
        needs_blocks=True,
    ),
    "need": Rule(
        frozenset({RESERVED, READY, RUNNING, FINISHED}),
        BlockError,
        "the session holds no blocks: prefill it first",
        needs_blocks=True,
        for_all=True,
    ),
    "audit": Rule(frozenset(SessionState), BlockError, "", for_all=True),
}


def require_rule(call: str, session: InferenceSession, engine: Any) -> None:
    """Raise unless `call` is allowed for a session now. engine: whose call it is."""
    require_a(InferenceSession, session, "session")
    require_own(session, engine)
    rule, state = RULES[call], session.state
    if not rule.for_all and session.owner is not None:
        raise RequestError(
            "the session is queued, running or finished already in a scheduler: leave it to that, or make a new one"
        )
    if state not in rule.states or (rule.needs_blocks and session.table is None):
        raise rule.error(f"{rule.says} (this one {state.value})")


def require_own(session: InferenceSession, engine: Any) -> None:
    """Raise `RequestError` for the session of another engine."""
    if session.engine is not engine.ref:
        raise RequestError(
            "the session is another engine's: use that engine, or make one with this engine's `new_session`"
        )


def require_siblings(session: InferenceSession, siblings: Sequence[SamplingParams], engine: Any) -> None:
    """Raise `RequestError` or `ConfigError` for samples that can never be served."""
    require(
        isinstance(siblings, Sequence) and not isinstance(siblings, (str, bytes)),
        f"siblings is {shown(siblings)}: give a list of SamplingParams, one for each further sample",
    )
    if siblings and session.state is not SessionState.NEW:
        raise RequestError(
            f"samples are forked off a session before its first token (this one {session.state.value}): submit a "
            "new session with them"
        )
    for params in siblings:
        require_a(SamplingParams, params, "each of the siblings")
        engine.check_request(session.prompt_ids, params)


def require_list(sessions: Sequence[InferenceSession]) -> None:
    """Raise `ConfigError` unless this is a list of something."""
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
    if _in_step(sessions, engine, missing):
        return
    require_rules(call, sessions, engine)
    for session in sessions:
        tokens, cached = len(session.token_ids), session.num_cached_tokens
        if cached >= engine.max_seq_len:
            raise RequestError(f"the session has {tokens} tokens: max_seq_len is {engine.max_seq_len}, make a new one")
        if tokens - cached not in missing:
            raise RequestError(
                f"the session has {tokens} tokens, {cached} of them computed: let it take its token, or decode it first"
            )


def require_blocks(sessions: Sequence[InferenceSession], engine: Any) -> None:
    """`require_rules` for the question whether a step has the blocks that it needs."""
    try:
        well = all(session.engine is engine.ref and session.table is not None for session in sessions)
    except (AttributeError, TypeError):
        well = False
    if not well:
        require_rules("need", sessions, engine)


def _in_step(sessions: Sequence[InferenceSession], engine: Any, missing: Container[int]) -> bool:
    longest, ref = engine.max_seq_len, engine.ref
    try:
        for s in sessions:
            cached = s.num_cached_tokens
            if (
                len(s.token_ids) - cached not in missing
                or cached >= longest
                or s.finish_reason is not None
                or s.table is None
                or s.awaits_prefill
                or s.engine is not ref
                or s.owner is not None
            ):
                return False
        return len(set(sessions)) == len(sessions)
    except (AttributeError, TypeError):  # something else than sessions
        return False


def require_logits(logits: torch.Tensor, batch: int, vocab_size: int) -> None:
    """Raise `ConfigError` unless these are the logits [batch, vocab_size] of a batch."""
    if isinstance(logits, torch.Tensor) and logits.shape == (batch, vocab_size) and logits.is_floating_point():
        return
    raise ConfigError(
        f"logits is {_described(logits)}: give the [{batch}, {vocab_size}] of the prefill or the decode step"
    )


def _described(logits: object) -> str:
    if isinstance(logits, torch.Tensor):
        return f"a tensor {list(logits.shape)} of {logits.dtype}"
    return shown(logits)
