"""Which call is allowed for which session, asked before a call has changed anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from ..checks import require_a, shown
from ..config import SamplingParams
from ..errors import BlockError, ConfigError, RequestError
from ..request.session import InferenceSession, SessionState

NEW, RESERVED, READY, RUNNING, FREED, FINISHED = SessionState

RULES = {  # a call: from which states it is allowed, what is raised for the others, and the remedy
    "reserve": ({NEW, FREED}, BlockError, "free it before it is computed again"),
    "prefill": ({NEW, RESERVED, FREED}, BlockError, "free it before it is computed again"),
    "decode": ({RUNNING}, RequestError, "prefill it, and `take_tokens`"),
    "take": ({READY}, RequestError, "compute it first"),
    "fork": ({READY, RUNNING}, RequestError, "prefill it"),
    "submit": ({NEW, FREED, RUNNING}, RequestError, "free it first"),
}


def require_own(session: InferenceSession, engine: Any, by_hand: bool = False) -> None:
    """Raise unless it is a session of this engine, and, by_hand, one that no scheduler has accepted."""
    require_a(InferenceSession, session, "session")
    if session.engine is not engine.ref:
        raise RequestError("the session is another engine's: make one with this engine's `new_session`")
    if by_hand and session.owner is not None:
        raise RequestError("the session is a scheduler's: leave it to that, or make a new one")


def require_blocks(session: InferenceSession, engine: Any, by_hand: bool) -> None:
    """`require_own`, and the session holds blocks."""
    require_own(session, engine, by_hand)
    if session.table is None:
        raise BlockError(f"the session holds no blocks, as it {session.state.value}: compute it first")


def require_rule(call: str, session: InferenceSession, engine: Any, states: Collection[SessionState] = ()) -> None:
    """Raise unless a call of RULES is allowed for a session now. engine: whose call it is. states: other ones."""
    require_own(session, engine, by_hand=call != "fork")
    allowed, error, remedy = RULES[call]
    if session.state not in (states or allowed):
        raise error(f"`{call}` takes no session that {session.state.value}: {remedy}, or make a new one")


def require_list(values: Any, name: str = "sessions") -> None:
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise ConfigError(f"{name} is {shown(values)}: give a list")


def require_rules(
    call: str, sessions: Sequence[InferenceSession], engine: Any, states: Collection[SessionState] = ()
) -> None:
    """The same for a batch, in which each session may be once."""
    require_list(sessions)
    for session in sessions:
        require_rule(call, session, engine, states)
    if len(set(sessions)) < len(sessions):
        raise BlockError("a batch holds blocks already that it asks for again: name each session once")


def require_in_step(call: str, sessions: Sequence[InferenceSession], engine: Any, missing: Collection[int]) -> None:
    """`require_rules` for the calls of a step. missing: how many of a session's tokens may be without K and V."""
    require_rules(call, sessions, engine, [(READY, RUNNING)[number] for number in missing])
    for session in sessions:
        tokens, cached = len(session.token_ids), session.num_cached_tokens
        if cached >= engine.max_seq_len:
            raise RequestError(f"the session has {tokens} tokens: max_seq_len is {engine.max_seq_len}, make a new one")
        if tokens - cached not in missing:
            raise RequestError(
                f"the session has {tokens} tokens, {cached} of them computed: let it take its token, or decode it first"
            )


def require_siblings(session: InferenceSession, siblings: Sequence[SamplingParams], engine: Any) -> None:
    """Raise `RequestError` or `ConfigError` for samples that can never be served."""
    require_list(siblings, "siblings")
    if siblings and session.state is not NEW:
        raise RequestError(
            f"samples are forked off a new session, and this one {session.state.value}: submit a new one with them"
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
