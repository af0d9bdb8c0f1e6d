"""The scenes of the bug hunts, and what there is to find in them.

A scene is a generator: it yields the live sessions by name, before the first decode step and after each. A truth plays
it with a right engine and a broken one, side by side, and returns for each question the texts that answer it. `hunt` is
a `lab.bug_hunt.Hunt`: it has the engines and the scene.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...kv.blocks import KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession

Sessions = dict[str, InferenceSession]
Truth = dict[str, set[str]]


# -- what scenes and truths are made of ---------------------------------------------------------------------------


def key_at(kv: KVBlockManager, session: InferenceSession, position: int, layer_idx: int = 0) -> torch.Tensor:
    """The key [H, D] that a session's table shows at a position: what attention is going to read there."""
    block_id = session.block_ids_per_layer[layer_idx][position // kv.block_size]
    return kv.k_layers[layer_idx][kv.info(block_id).block_index, :, position % kv.block_size]


def _start(engine: InferenceEngine, prompts: Mapping[str, list[int]]) -> Sessions:
    """Prefilled sessions that have their first token."""
    params = SamplingParams(max_new_tokens=24, stop_on_eos=False)
    sessions = {name: engine.new_session(prompt, params) for name, prompt in prompts.items()}
    live = list(sessions.values())
    engine.take_tokens(live, engine.prefill(live))
    return sessions


def _step(engine: InferenceEngine, sessions: Sessions) -> None:
    live = list(sessions.values())
    engine.take_tokens(live, engine.decode_step_sessions(live))


def _steps(engine: InferenceEngine, sessions: Sessions, number: int) -> Iterator[Sessions]:
    for _ in range(number):
        _step(engine, sessions)
        yield sessions


def _fork(engine: InferenceEngine, session: InferenceSession) -> InferenceSession:
    """A fork that goes on with another word."""
    fork = engine.fork(session)
    fork.token_ids[-1] = 99
    return fork


def side_by_side(hunt: Any, model: Model) -> Iterator[tuple[int, InferenceEngine, Sessions, InferenceEngine, Sessions]]:
    """(step, right engine, its sessions, broken engine, its sessions) at each moment of the scene."""
    right, broken = hunt.engines(model)
    moments = zip(hunt.scene(right), hunt.scene(broken), strict=True)
    for step, (ours, theirs) in enumerate(moments):
        yield step, right, ours, broken, theirs


def _first_wrong_keys(hunt: Any, model: Model) -> tuple[InferenceEngine, Sessions, InferenceEngine, list]:
    """The first moment in which keys differ: the right engine and its sessions, the broken one, and the wrong places.

    A place is (name, the broken engine's session, position).
    """
    for _, right, ours, broken, theirs in side_by_side(hunt, model):
        wrong = [
            (name, theirs[name], position)
            for name, session in ours.items()
            for position in range(session.num_cached_tokens)
            if not torch.equal(key_at(right.kv, session, position), key_at(broken.kv, theirs[name], position))
        ]
        if wrong:
            return right, ours, broken, wrong
    raise AssertionError("the broken part writes the right keys: it is not broken")


def _owner_of(key: torch.Tensor, kv: KVBlockManager, sessions: Sessions) -> str:
    """The session whose newest key this is."""
    names = [n for n, s in sessions.items() if torch.equal(key_at(kv, s, s.num_cached_tokens - 1), key)]
    return names[0]


# -- 036 ----------------------------------------------------------------------------------------------------------


def scene_036(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = _start(engine, {"S": [5, 6, 7, 8, 9, 10, 11, 12, 13], "T": [20, 21, 22, 23, 24]})
    yield sessions
    yield from _steps(engine, sessions, 1)
    sessions["fork"] = _fork(engine, sessions["S"])
    yield from _steps(engine, sessions, 9)


def truth_036(hunt: Any, model: Model) -> Truth:
    for step, _, _, broken, sessions in side_by_side(hunt, model):
        tables = broken.decode_step.block_tables(list(sessions.values()))[0]
        for row, (name, session) in zip(tables.tolist(), sessions.items(), strict=True):
            ids = session.block_ids_per_layer[0]
            wrong = [shown for shown, block_id in zip(row, ids, strict=False) if shown != block_id]
            if wrong:
                return {"session": {name}, "step": {str(step)}, "block": {str(wrong[0])}}
    raise AssertionError("the broken part gives the right tables: it is not broken")


# -- 038 ----------------------------------------------------------------------------------------------------------


def scene_038(engine: InferenceEngine) -> Iterator[Sessions]:
    lengths = {"A": 6, "B": 5, "C": 7, "D": 4}
    sessions = _start(engine, {name: [10 * n + 3] * length for n, (name, length) in enumerate(lengths.items())})
    yield sessions
    yield from _steps(engine, sessions, 8)


def truth_038(hunt: Any, model: Model) -> Truth:
    right, ours, broken, wrong = _first_wrong_keys(hunt, model)
    name, session, position = wrong[0]
    whose = _owner_of(key_at(broken.kv, session, position), right.kv, ours)
    return {"session": {name}, "position": {str(position)}, "whose": {whose}}


# -- 059 ----------------------------------------------------------------------------------------------------------


def scene_059(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = _start(engine, {"S": [5, 6, 7, 8, 9, 10, 11], "T": [20, 21, 22]})
    yield sessions
    yield from _steps(engine, sessions, 1)
    sessions["fork"] = _fork(engine, sessions["S"])
    yield from _steps(engine, sessions, 2)
    engine.free(sessions.pop("S"))
    sessions |= _start(engine, {"U": [31, 32, 33, 34, 35, 36]})
    yield from _steps(engine, sessions, 6)


def truth_059(hunt: Any, model: Model) -> Truth:
    for step, _, _, broken, sessions in side_by_side(hunt, model):
        tables = [session.block_ids_per_layer[0] for session in sessions.values()]
        for block_id in sorted({block_id for ids in tables for block_id in ids}):
            if broken.kv.info(block_id).owners != sum(block_id in ids for ids in tables):
                return {"step": {str(step)}, "block": {str(block_id)}}
    raise AssertionError("the owners are counted right: the part is not broken")


# -- 060 ----------------------------------------------------------------------------------------------------------


def scene_060(engine: InferenceEngine) -> Iterator[Sessions]:
    lengths = {"A": 7, "B": 4, "C": 6, "D": 2}
    sessions = _start(engine, {name: [10 * n + 3] * length for n, (name, length) in enumerate(lengths.items())})
    yield sessions
    yield from _steps(engine, sessions, 2)
    del sessions["D"]  # it has been cancelled
    sessions["E"] = _start(engine, {"E": [41] * 9})["E"]
    yield from _steps(engine, sessions, 3)


def truth_060(hunt: Any, model: Model) -> Truth:
    _, _, _, wrong = _first_wrong_keys(hunt, model)
    old = [(name, position) for name, session, position in wrong if position < session.num_cached_tokens - 1]
    return {"session": {old[0][0]}, "position": {str(old[0][1])}}


# -- 061 ----------------------------------------------------------------------------------------------------------


def scene_061(engine: InferenceEngine) -> Iterator[Sessions]:
    prompts = {name: [10 * n + 3] * 4 for n, name in enumerate("ABCD")}
    sessions = _start(engine, prompts)
    yield sessions
    yield from _steps(engine, sessions, 2)
    first, *others = sessions
    sessions = {first: sessions[first], "fork": _fork(engine, sessions[first]), **{n: sessions[n] for n in others}}
    yield from _steps(engine, sessions, 3)


def truth_061(hunt: Any, model: Model) -> Truth:
    right, ours, broken, wrong = _first_wrong_keys(hunt, model)
    holders = {
        _owner_of(key_at(broken.kv, session, position), right.kv, ours): name for name, session, position in wrong
    }
    return {"session": {holders["fork"]}, "position": {str(wrong[0][2])}}
