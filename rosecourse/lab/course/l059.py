"""Lesson 059, the batched rollover: who begins a block stays in the batch."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.engine_parts import per_layer_cache
from ..world.situations import FULL
from ..world.worlds import KV_APPEND
from .costs import CALLS, LOOP, STORES, ideas
from .form import LINE, Bug, Course, Exercise, Track
from .scenes import Played, Sessions, Truth, fork, side_by_side, start, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=1,
    minutes=15,
    text=(
        "Keep a request whose last block is full in the batch. As it stands, the cell runs and is right: a "
        "full block goes the slow way. `self.kv.allocate_block(layer_idx, start)` gives the id of an empty block "
        "with one owner; `start` is the position, in its sequence, of the first token that goes into it."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Now a session whose last block is full goes to `append_token`, alone. Make it roll over in the "
        "scan, so that only copies are left for the slow path."
    ),
    goals={
        "if info is None or info.length == self.kv.block_size or info.owners > 1:": (
            "1. roll over: no block yet, or a full one? Then a new block at the end of the session's list, "
            "and go on with that one"
        ),
        "slow_batch_idx.append(b)  # a new block, or a copy": (
            "2. what is left for the slow path? Mind the order of the two questions, *is it full* and *is it shared*"
        ),
    },
    look=(
        "`self.kv.append_token` begins a new block too: what does it give to `allocate_block`? And which "
        "block does `write` use, the one that `info` was before the rollover or the one after it?"
    ),
    do=(
        "* `self.kv.allocate_block(layer_idx, start)` gives the id of an empty block with one owner. `start` "
        "is the position of its first token: where the full block begins, plus its length; 0 if there is "
        "none.\n"
        "* Append the id to `block_ids`: that is the session's own list, so change it in place.\n"
        "* Ask `self.kv.info` again, for the new block. Only then ask for its owners."
    ),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start(engine, {"S": [5, 6, 7, 8, 9, 10, 11], "T": [20, 21, 22]})
    yield sessions
    yield from steps(engine, sessions, 1)
    sessions["fork"] = fork(engine, sessions["S"])
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("S"))
    sessions |= start(engine, {"U": [31, 32, 33, 34, 35, 36]})
    yield from steps(engine, sessions, 6)


def truth(hunt: Played, model: Model) -> Truth:
    for step, _, _, broken, sessions in side_by_side(hunt, model):
        tables = [session.block_ids_per_layer[0] for session in sessions.values()]
        for block_id in sorted({block_id for ids in tables for block_id in ids}):
            if per_layer_cache(broken.kv).info(block_id).owners != sum(block_id in ids for ids in tables):
                return {"step": {str(step)}, "block": {str(block_id)}}
    raise AssertionError("the owners are counted right: the part is not broken")


BUG = Bug(
    minutes=15,
    symptom=(
        "A request and its fork part exactly at the end of a block, and both go on with the right tokens. Then "
        "the request is done, its blocks are freed, and a new request comes. From then on the fork's tokens are "
        "wrong, although its table has not changed."
    ),
    questions={
        "step": "after which step of the scene the books are wrong for the first time, long before a token is",
        "block": "the block id of layer 0 that is counted wrong",
        "line": LINE,
    },
    hints={
        "step": (
            "`engine.kv.audit([s.block_ids_per_layer for s in sessions.values()])` says when the books are "
            "wrong; ask it at every moment of the scene. The moment before the first step is number 0."
        ),
        "block": ("Count for each block of layer 0 how many tables show it, and compare with `kv.info(block).owners`."),
        "line": "Who goes on owning a full block after the rollover?",
    },
    old="start = info.start + info.length if info else 0\n",
    new=(
        "start = info.start + info.length if info else 0\n"
        "                if info and info.owners > 1:\n"
        "                    info.owners -= 1  # from here on this session has a block of its own\n"
    ),
    config=EngineConfig(block_size=4, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "After a copy-on-write a session leaves the shared block, and its owner count falls. After a rollover it "
        "does not leave: the full block stays in its table and is read at every step. Here it is taken off the "
        "count, so that the block has one owner too few. When the request is freed, the count comes to 0, the "
        "block is given to somebody else, and the fork reads the newcomer's keys. The tokens go wrong steps "
        "later, in another request: only the books say it at once."
    ),
)


# -- the race ---------------------------------------------------------------------------------------------------------

BOUNDARY_STEP = Track(
    timed="one decode step, in which every request begins a block",
    metric="decode time",
    prompt_tokens=EngineConfig().block_size,  # exactly one full block: the next token begins another
    new_tokens=(2, 2),  # the first comes from the prefill
    rounds=31,
)


# -- what is counted --------------------------------------------------------------------------------------------------


COURSE = Course(
    number="059",
    world=KV_APPEND,
    exercise=EXERCISE,
    bug=BUG,
    ideas=(
        *ideas(FULL, CALLS),
        *ideas(FULL, STORES),
        *ideas((at for at in FULL if at.can_be_halved), LOOP),
    ),
    track=BOUNDARY_STEP,
)
