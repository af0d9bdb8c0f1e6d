"""What the scenes of the bug hunts are made of, and the truths about them.

A scene is a generator: it yields the live sessions by name, before the first decode step and after each. A truth plays
it with a right engine and a broken one, side by side, and returns for each question the texts that answer it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...kv.pool import KVPool
from ...request.session import InferenceSession, Prompt
from ..checking.layout import layout_of

Sessions = dict[str, InferenceSession]
Moments = Iterator[dict[str, Any]]  # what a scene shows before the first step and after each
Truth = dict[str, set[str]]
WrongKey = tuple[str, InferenceSession, int]  # (name, the broken engine's session, position)


class Played(Protocol):
    """A hunt, as far as a truth needs it: its engines, a right one and a broken one, and its scene on an engine."""

    def engines(self) -> tuple[InferenceEngine, InferenceEngine]: ...

    def scene(self, engine: InferenceEngine) -> Iterator[dict[str, Any]]: ...


def prefilled(engine: InferenceEngine, prompts: Iterable[Prompt], new_tokens: int = 64) -> list[InferenceSession]:
    """Sessions that are prefilled and have their first token: ready for decode steps.

    prompts: texts or token ids. new_tokens: the most that each may have, the first one counted.
    """
    params = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False)
    sessions = [engine.new_session(prompt, params) for prompt in prompts]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def step(engine: InferenceEngine, sessions: Iterable[InferenceSession]) -> None:
    """One decode step: each session has one more token."""
    live = list(sessions)
    engine.take_tokens(live, engine.decode_step_sessions(live))


def start(engine: InferenceEngine, prompts: Mapping[str, list[int]]) -> Sessions:
    return dict(zip(prompts, prefilled(engine, prompts.values(), 24), strict=True))


def start_lengths(engine: InferenceEngine, lengths: Mapping[str, int]) -> Sessions:
    """Prefilled sessions with prompts of these lengths, each of another word."""
    return start(engine, {name: [10 * n + 3] * length for n, (name, length) in enumerate(lengths.items())})


def steps(engine: InferenceEngine, sessions: Sessions, number: int) -> Iterator[Sessions]:
    """So many decode steps; yields the sessions after each."""
    for _ in range(number):
        step(engine, sessions.values())
        yield sessions


def fork(engine: InferenceEngine, session: InferenceSession) -> InferenceSession:
    """A fork that goes on with another word."""
    child = engine.fork(session)
    child.token_ids[-1] = 99
    return child


def key_at(kv: KVPool, session: InferenceSession, position: int, layer_idx: int = 0) -> torch.Tensor:
    """The key [H, D] that a session's table shows at a position: what attention is going to read there."""
    block_id = layout_of(kv).id_lists(kv, session.table)[layer_idx][position // kv.block_size]
    return kv.k_layers[layer_idx][block_id % kv.num_blocks, :, position % kv.block_size]


def side_by_side(hunt: Played) -> Iterator[tuple[int, InferenceEngine, Sessions, InferenceEngine, Sessions]]:
    """(moment, right engine, its sessions, broken engine, its sessions) for each moment of the scene."""
    right, broken = hunt.engines()
    moments = zip(hunt.scene(right), hunt.scene(broken), strict=True)
    for moment, (ours, theirs) in enumerate(moments):
        yield moment, right, ours, broken, theirs


def first_wrong_token(hunt: Played, look: Callable[[InferenceEngine, Sessions], Any]) -> tuple[str, str, Any, Any]:
    """(session, moment) of the first wrong token; what `look` finds in the broken engine a moment earlier, and then."""
    before = None
    for moment, _, ours, broken, theirs in side_by_side(hunt):
        now = look(broken, theirs)
        for name, session in ours.items():
            if session.token_ids != theirs[name].token_ids:
                return name, str(moment), before, now
        before = now
    raise AssertionError("the broken part makes the right tokens: it is not broken")


def first_wrong_keys(hunt: Played) -> tuple[InferenceEngine, Sessions, InferenceEngine, list[WrongKey]]:
    """The first moment in which keys differ: the right engine and its sessions, the broken one, and the wrong keys."""
    for _, right, ours, broken, theirs in side_by_side(hunt):
        wrong = [
            (name, theirs[name], position)
            for name, session in ours.items()
            for position in range(session.num_cached_tokens)
            if not torch.equal(key_at(right.kv, session, position), key_at(broken.kv, theirs[name], position))
        ]
        if wrong:
            return right, ours, broken, wrong
    raise AssertionError("the broken part writes the right keys: it is not broken")


def owner_of(key: torch.Tensor, kv: KVPool, sessions: Sessions) -> str:
    """The session whose newest key this is."""
    return next(n for n, s in sessions.items() if torch.equal(key_at(kv, s, s.num_cached_tokens - 1), key))
