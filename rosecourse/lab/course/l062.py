"""Lesson 062, one table for all layers: blocks and slots are found once a step, and the layers only write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.situations import FULL, SIMPLE, Situation, always, any_blocks, gated, half_full, of, same_slot
from ..world.worlds import KV_APPEND_ONE_TABLE
from . import starts
from .costs import COPIES, INDEX_TENSORS, LAUNCHES, LOOP, NO_LAUNCH, STORES, Cost, Seen, ideas
from .form import KEY_AT, LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, first_wrong_keys, fork, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=2,
    minutes=45,
    begins_as=starts.KVAppendByLayer,
    text=(
        "The cell holds a part that is right. It uses the new cache, and makes room once a step, by `place`. "
        "All the rest it still does in each layer, as lesson 061 did: it copies shared blocks, makes lists of blocks "
        "and slots, sends them to the device, and chooses how to write. Do once what is the same in all layers, and "
        "leave to a layer what differs."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Goal: the index tensors are made once a step, for all layers, and a shared block is copied "
        "in all layers by one copy of K and one of V. Large batches still go to the kernels."
    ),
    goals={},
    look=(
        "Which lines of `write` give the same result in every layer? Which of their results do the three ways to write "
        "need? And what is the shape of `self.kv.keys`, of which `self.kv.k_layers` are the layers?"
    ),
    do=(
        "`self.kv.keys[:, block]` is one block in all layers, so one assignment for K and one for V make a copy. Make "
        "all copies before anything is written.\n\nPut what `write` finds out about the slots into a method of its "
        "own, and call it once, between the copies and the loop over the layers: the blocks, the slots (one number, if "
        "they are all equal), and where a kernel wants to know which row is whose, the rows. `index_tensor` takes a "
        "list of lists too, and sends it at once; the rows of that tensor are views. Give the result to `write`, which "
        "then only chooses between two kernels and the indexed stores. The tokens are counted when all layers have "
        "written, as now: until then `num_tokens` says where the new token goes."
    ),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, {"A": 5, "B": 6})
    yield sessions
    yield from steps(engine, sessions, 1)
    sessions["F"], sessions["G"] = fork(engine, sessions["A"]), fork(engine, sessions["A"])
    yield from steps(engine, sessions, 6)


def truth(hunt: Played, model: Model) -> Truth:
    _, ours, _, wrong = first_wrong_keys(hunt, model)
    (name,) = {name for name, _, _ in wrong}
    newest = ours[name].num_cached_tokens - 1
    assert newest not in {position for _, _, position in wrong}  # what is written anew is right
    source = ours["G"].table[-1]  # the last one to be placed has the original to itself
    return {"session": {name}, "lost": {str(len(wrong))}, "source": {str(source)}}


COLLEAGUES_FILE = '''\
from rosecourse.kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Settles where everybody writes, and then goes through the layers."""

    def __init__(self, model, kv, config):
        self.kv, self.pools = kv, (kv.keys, kv.values)
        self.any_from = (
            config.triton_kv_append_min_batch if triton_runs_on(kv.device) else float("inf")
        )
        self.level_from = self.any_from
        if config.triton_kv_append_full_batch_min_batch and triton_runs_on(kv.device):
            self.level_from = config.triton_kv_append_full_batch_min_batch

    def __call__(self, sessions, keys, values):
        owners = [session.table for session in sessions]
        self.separate(owners)
        write = self.writer(
            [ids[-1] for ids in owners],
            [ids.num_tokens % self.kv.block_size for ids in owners],
        )
        for pair, *new in zip(zip(*self.pools, strict=True), keys, values, strict=True):
            write(pair, new)
        for ids in owners:
            ids.num_tokens += 1

    def separate(self, owners):
        """A last block with room for everybody, and nobody else's."""
        moves = {move.source: move for move in self.kv.place(owners)}  # each block once
        for old, new in moves.values():
            for pool in self.pools:
                pool[:, new] = pool[:, old]

    def writer(self, blocks, places):
        """What writes a layer's K and V, given the two caches and the new rows."""
        level = len(set(places)) == 1
        if len(blocks) >= self.level_from and level:
            where = index_tensor(blocks, self.kv.device)
            return lambda pair, new: kv_append_triton_full_batch(*pair, *new, where, places[0])
        if len(blocks) >= self.any_from and not level:
            lists = index_tensor([list(range(len(blocks))), blocks, places], self.kv.device)
            return lambda pair, new: kv_append_triton(*pair, *new, *lists)
        return self.storing(blocks, places, level)

    def storing(self, blocks, places, level):
        sent = index_tensor([blocks] if level else [blocks, places], self.kv.device)
        at = places[0] if level else sent[1]

        def store(pair, new):
            for cache, rows in zip(pair, new, strict=True):
                cache[sent[0], :, at] = rows

        return store
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "A request is forked twice in the middle of a block, and goes on together with both forks. From then on one of "
        "the three is wrong, as if it had forgotten its last few words. The audit finds nothing."
    ),
    tools=(
        KEY_AT,
        "`session.table` is the list of blocks of a session, the same for all layers.",
    ),
    questions={
        "session": "the name of the request that loses keys",
        "lost": "how many of its keys are wrong after the first step in which any is, a number",
        "source": "the index of the block from which these keys should have been copied, a number",
        "line": LINE,
    },
    hints={
        "session": "Compare all keys of all requests in both engines, at each moment.",
        "lost": "Count the positions at which the keys of that request differ at that moment, and at no later one.",
        "source": (
            "Before that step all three show the same last block. Print `session.table` before and after it: each of "
            "them has a last block of its own then, and one of these is the old one."
        ),
        "line": "How many copies does `place` ask for in that step, and how many are made?",
    },
    source=COLLEAGUES_FILE,
    fault=(
        "        moves = {move.source: move for move in self.kv.place(owners)}  # each block once\n"
        "        for old, new in moves.values():\n"
    ),
    mended="        for old, new in self.kv.place(owners):  # one block may be copied several times\n",
    config=EngineConfig(block_size=4, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "With one table for all layers, `place` asks for one copy for each session that has to leave a shared block. "
        "Three sessions share a block, and all of them are about to write into it: two leave it, so there are two "
        "copies with one source. The colleague files them by their source, and of two with the same source the later "
        "one stays. The block of the first is the session's own and has room, so the books are in order, but nobody "
        "has written the keys that were to be copied into it. With one fork, or with the second fork a step later, "
        "each source is copied once, and nothing is lost."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------


def forked_twice(oracle: Oracle, n: int) -> list[Tracked]:
    """Two children share the last block of the first session, and all three are in the step."""
    made = of(any_blocks)(oracle, n - 2)
    return [*made, oracle.fork(made[0]), oracle.fork(made[0])]


COPIED = (
    Situation("inside their blocks, 3 of them in a block that they share", forked_twice, n=6),
    SIMPLE[2],
    FULL[5],
)
PLAIN = (
    *(at for at in (*SIMPLE, *FULL) if at not in COPIED),
    Situation("at the same slot", of(always(5))),
    Situation("at the same slot of first, second and third blocks", of(same_slot(5)), n=5),
)
MIXED = (
    gated("inside their blocks, with a threshold of 4", of(any_blocks), 4, None),
    gated("of whose last blocks half are full, with a threshold of 2", of(half_full), 2, None, n=3),
)
LEVEL = (
    gated("at the same slot, with a threshold of 4", of(always(5)), 4, None),
    gated("at the same slot, with a threshold of 5, and of 4 for whole batches", of(always(5)), 5, 4),
)
BELOW = (gated("inside their blocks, with a threshold of 5", of(any_blocks), 5, None),)


def _copies_by_layer(at: Situation, seen: Seen, right: int) -> str:
    """Whether each of the blocks is copied layer by layer, and all else is stored as in the course's part."""
    copied = right - 2 * at.layers  # K and V of each block, for all layers at once
    by_layer = seen.stores - right == copied * (at.layers - 1)
    return "a shared block is copied in each layer" if by_layer else ""


def lists(spare: int) -> Cost:
    """Index tensors: one for each list and not one for all of them, but none that each layer makes anew."""
    return replace(INDEX_TENSORS, spare=spare)


def rows(spare: int) -> Cost:
    """Copies of rows: K and V of all layers may be put together for one store, and so may all copies of blocks."""
    return replace(COPIES, spare=spare)


BLOCKS = replace(STORES, hint=_copies_by_layer)

COURSE = Course(
    number="062",
    world=KV_APPEND_ONE_TABLE,
    exercise=EXERCISE,
    bug=BUG,
    ideas=(
        *ideas(PLAIN, lists(1), STORES, rows(2)),
        *ideas(COPIED, BLOCKS, lists(3), rows(4)),
        *ideas((at for at in (*PLAIN, *COPIED) if at.can_be_halved), LOOP),
        *ideas(MIXED, lists(2)),
        *ideas((*MIXED, *LEVEL), NO_LAUNCH),
        *ideas((*MIXED, *LEVEL, *BELOW), LAUNCHES),
    ),
    let_in="the kernels of large batches",
)
