"""Lesson 059, the batched rollover: who begins a block stays in the batch."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.layout import layout_of
from ..world.situations import FULL
from ..world.worlds import KV_APPEND
from .costs import CALLS, LOOP, STORES, ideas
from .form import LINE, Bug, Course, Exercise, Track
from .scenes import Played, Sessions, Truth, fork, side_by_side, start, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=1,
    minutes=20,
    text="Keep a session that begins a block in the batch, so that only copies are left for `append_token`.",
    docstring="Put the new token's K and V into the cache.",
    goals={},
    look=(
        "`append_token` begins a new block too; `listing(type(engine.kv).append_token)` shows it. What does "
        "it give to `allocate_block`, and where does it put the id that it gets? Which block does `write` need "
        "afterwards? And if a block is full *and* shared, does it have to be copied?"
    ),
    do=(
        "In the scan, ask first whether the session has no block yet or a full one. If so, get an empty block from "
        "`self.kv.allocate_block(layer_idx, start)`, where `start` is the position of its first token in the sequence: "
        "where the full block begins plus what it holds, or 0 if there is none. Append the id to the session's own "
        "list, in place, and go on with the new block's `info`. Only then ask for the owners: a full block is never "
        "written again, so that it need not be copied, and the new one has a single owner."
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
    for moment, _, _, broken, sessions in side_by_side(hunt, model):
        tables = [session.block_ids_per_layer[0] for session in sessions.values()]
        for block_id in sorted({block_id for ids in tables for block_id in ids}):
            if layout_of(broken.kv).info(broken.kv, block_id).owners != sum(block_id in ids for ids in tables):
                return {"moment": {str(moment)}, "block": {str(block_id)}}
    raise AssertionError("the owners are counted right: the part is not broken")


COLLEAGUES_FILE = '''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Gives every session a block of its own that has
    room, and then writes all of them together."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            blocks = [
                self.prepare(layer, session.block_ids_per_layer[layer]) for session in sessions
            ]
            where = index_tensor([block.block_index for block in blocks], self.kv.device)
            slots = index_tensor([block.length for block in blocks], self.kv.device)
            self.kv.k_layers[layer][where, :, slots] = k
            self.kv.v_layers[layer][where, :, slots] = v
            for block in blocks:
                block.length += 1

    def prepare(self, layer, ids):
        """The block for a session's next token: its
        last one, the one after it, or a copy of it."""
        last = self.kv.info(ids[-1]) if ids else None
        if last is None:
            ids.append(self.kv.allocate_block(layer, 0))
            return self.kv.info(ids[-1])
        alone, full = last.owners == 1, last.length == self.kv.block_size
        if alone and not full:
            return last
        new_id = self.kv.allocate_block(layer, last.start + self.kv.block_size * full)
        new = self.kv.info(new_id)
        if full:
            ids.append(new_id)
        else:
            self.copy(layer, last, new)
            ids[-1] = new_id
        if not alone:
            self.leave(last)
        return new

    def leave(self, block):
        """One session less shows this block."""
        block.owners -= 1

    def copy(self, layer, old, new):
        """What a block holds, into another one."""
        for cache in (self.kv.k_layers[layer], self.kv.v_layers[layer]):
            cache[new.block_index, :, : old.length] = cache[old.block_index, :, : old.length]
        new.length = old.length
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "A request and its fork separate exactly at the end of a block, and both go on with the right tokens. Then "
        "the request finishes, its blocks are freed, and a new request arrives. From then on the fork's tokens are "
        "wrong, although its block table has not changed."
    ),
    tools=(
        "`engine.kv.audit([s.block_ids_per_layer for s in sessions.values()])` raises `BlockError` where the books of "
        "the cache do not agree with the tables of the sessions.",
        "`engine.kv.info(block_id)` is what the books say of a block; `session.block_ids_per_layer[0]` holds the ids "
        "that a session shows in layer 0.",
    ),
    questions={
        "moment": "the first moment of the scene, a number, at which the books are wrong; no token is wrong yet",
        "block": "the id, a number, of the block of layer 0 of which the books then say something wrong",
        "line": LINE,
    },
    hints={
        "moment": "Ask `engine.kv.audit` at every moment of the scene; moment 0 comes before the first step.",
        "block": "Count how many tables show each block of layer 0, and compare with what `kv.info(block_id)` says.",
        "line": "Which of the three ways to get a block makes a session leave the one that it had?",
    },
    source=COLLEAGUES_FILE,
    fault="        if not alone:\n            self.leave(last)\n",
    mended=(
        "        if not full:  # only who has a copy leaves the original; a full block stays in the table\n"
        "            self.leave(last)\n"
    ),
    config=EngineConfig(block_size=4, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "After a copy-on-write a session leaves the shared block, and its owner count falls. After a rollover it does "
        "not leave: the full block stays in its table and is read at every step. The condition asks whether others "
        "own the block, which is true in both cases, and so the full block has one owner too few. When the request is "
        "freed, the count comes to 0, the block is given to somebody else, and the fork reads the newcomer's keys. The "
        "tokens go wrong steps later, in another request; only the books say so at once."
    ),
)


# -- the race ---------------------------------------------------------------------------------------------------------

BOUNDARY_STEP = Track(
    timed="the last decode step, in which every request begins a block",
    metric="last step",
    prompt_tokens=EngineConfig().block_size - 4,  # four steps fill the block, and the fifth begins another
    new_tokens=(6, 6),  # the first comes from the prefill
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
