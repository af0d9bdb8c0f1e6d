"""Lesson 059, the batched rollover: a session that begins a block stays in the batch."""

from typing import Any

from ...engine.engine import InferenceEngine
from ..checking.costs import ALONE_FULL, FEW_FULL, FIRST, FULL, FULL_SHARED, Bound, growth
from ..checking.models.appends import KVAppend
from .form import LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Truth, fork, side_by_side, start, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start(engine, {"S": [5, 6, 7, 8, 9, 10, 11], "T": [20, 21, 22]})
    yield sessions
    yield from steps(engine, sessions, 1)
    sessions["fork"] = fork(engine, sessions["S"])
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("S"))
    sessions |= start(engine, {"U": [31, 32, 33, 34, 35, 36]})
    yield from steps(engine, sessions, 6)


def truth(hunt: Played) -> Truth:
    for moment, _, _, broken, sessions in side_by_side(hunt):
        kv: Any = broken.kv
        tables = [session.block_ids_per_layer[0] for session in sessions.values()]
        for block_id in sorted({block_id for ids in tables for block_id in ids}):
            if kv.info(block_id).owners != sum(block_id in ids for ids in tables):
                return {"moment": {str(moment)}, "block": {str(block_id)}}
    raise AssertionError("the owners are counted right: the part is not broken")


COURSE = Course(
    world=KVAppend,
    symptom=(
        "A request and its fork separate exactly at the end of a block, and both continue with the right tokens. Then "
        "the request finishes, and a new request arrives. From then on the fork's tokens are wrong, although its "
        "block table has not changed."
    ),
    tools=(
        "`engine.kv.audit([s.block_ids_per_layer for s in sessions.values()])` raises `BlockError` where the owner "
        "counts of the cache do not agree with the tables.",
        "`engine.kv.info(block_id)` shows what the cache counts of a block.",
    ),
    questions={
        "moment": "the first moment at which an owner count is wrong; no token is wrong yet",
        "block": "the id of the block of layer 0 with the wrong count",
        "line": LINE,
    },
    hints={
        "moment": f"Ask `engine.kv.audit` at every moment. {MOMENTS}",
        "block": "Count how many tables show each block of layer 0, and compare with what `kv.info(block_id)` says.",
        "line": "Which of the three ways to get a block makes a session leave the one that it had?",
    },
    source='''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Gives every session a block of its own with room, then writes all rows together."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            blocks = [self.prepare(layer, ids) for ids in tables]
            where = index_tensor([block.block_index for block in blocks], self.kv.device)
            slots = index_tensor([block.length for block in blocks], self.kv.device)
            self.kv.k_layers[layer][where, :, slots] = k
            self.kv.v_layers[layer][where, :, slots] = v
            for block in blocks:
                block.length += 1

    def prepare(self, layer, ids):
        """The block for a session's next token: its last one, the next one, or a copy."""
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
            last.owners -= 1
        return new

    def copy(self, layer, old, new):
        for cache in (self.kv.k_layers[layer], self.kv.v_layers[layer]):
            cache[new.block_index, :, : old.length] = cache[old.block_index, :, : old.length]
        new.length = old.length
''',
    fault="        if not alone:\n            last.owners -= 1\n",
    mended="        if not full:  # a full block stays in the table\n            last.owners -= 1\n",
    config=small(4, 4),
    scene=scene,
    truth=truth,
    idea=(
        Bound("append_token calls", (FULL, FIRST, FEW_FULL, ALONE_FULL, FULL_SHARED), "calls"),
        Bound("stores of K and V", (FULL, FIRST), "stores"),
        Bound("operations beyond those of half the sessions", (FULL, FIRST), growth),
    ),
)
