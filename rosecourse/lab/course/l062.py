"""Lesson 062, one table for all layers: blocks and slots are found once a step, and the layers only write."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..checking import costs
from ..checking.costs import Bound
from ..checking.models.appends import KVAppend
from . import starts
from .form import KEY_AT, LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, first_wrong_keys, fork, start_lengths, steps

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=2,
    minutes=45,
    begins_as=starts.KVAppendByLayer,
    text=(
        "The cell holds a part that is right. It uses the new cache, and makes room once a step, by `place`. All the "
        "rest it still does in each layer, as lesson 061 did: it copies shared blocks, sends lists of blocks and "
        "slots, and chooses how to write. Do once what is the same in all layers."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Goal: the index tensors are made once a step, for all layers, and a shared block is copied "
        "in all layers by one copy of K and one of V. Large batches still go to the kernels."
    ),
    look=(
        "Which lines of `write` give the same result in every layer? Which of their results do the three ways to "
        "write need? And what is the shape of `self.kv.keys`, of which `self.kv.k_layers` are the layers?"
    ),
    do=(
        "`self.kv.keys[:, block]` is one block in all layers, so one assignment for K and one for V make a copy. Make "
        "all copies before anything is written.\n\n"
        "Put what `write` finds out about the slots into a method of its own, and call it once, between the copies "
        "and the loop over the layers: the blocks, the slots (one number, if they are all equal) and, for the kernel "
        "that wants them, the rows. `index_tensor` takes a list of lists too, and sends it at once. Give the result "
        "to `write`, which then only chooses between two kernels and the indexed stores. Count the tokens when all "
        "layers have written, as now."
    ),
)


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
    """Settles where each session writes, once for all layers."""

    def __init__(self, model, kv, config):
        self.kv, self.pools, runs = kv, (kv.keys, kv.values), triton_runs_on(kv.device)
        self.any_from = config.triton_kv_append_min_batch if runs else float("inf")
        level = runs and config.triton_kv_append_full_batch_min_batch
        self.level_from = level or self.any_from

    def __call__(self, sessions, keys, values):
        owners = [session.table for session in sessions]
        self.separate(owners)
        blocks = [ids[-1] for ids in owners]
        write = self.writer(blocks, [ids.num_tokens % self.kv.block_size for ids in owners])
        for pair, *new in zip(zip(*self.pools, strict=True), keys, values, strict=True):
            write(pair, new)
        for ids in owners:
            ids.num_tokens += 1

    def separate(self, owners):
        moves = {move.source: move for move in self.kv.place(owners)}  # each block once
        for old, new in moves.values():
            for pool in self.pools:
                pool[:, new] = pool[:, old]

    def writer(self, blocks, slots):
        level = len(set(slots)) == 1
        sent = index_tensor([blocks] if level else [blocks, slots], self.kv.device)
        if level and len(blocks) >= self.level_from:
            return lambda pair, new: kv_append_triton_full_batch(*pair, *new, sent[0], slots[0])
        if not level and len(blocks) >= self.any_from:
            rows = index_tensor(list(range(len(blocks))), self.kv.device)
            return lambda pair, new: kv_append_triton(*pair, *new, rows, *sent)

        def store(pair, new):
            for cache, rows in zip(pair, new, strict=True):
                cache[sent[0], :, slots[0] if level else sent[1]] = rows

        return store
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "A request is forked twice in the middle of a block, and continues with both forks. From then on one of the "
        "three is wrong, as if it had forgotten its last few words."
    ),
    tools=(KEY_AT, "`session.table` is a session's list of blocks, the same for all layers."),
    questions={
        "session": "the request that loses keys",
        "lost": "how many of its keys are wrong after the first step with a wrong key",
        "source": "the index of the block from which these keys should have been copied",
        "line": LINE,
    },
    hints={
        "session": "Compare all keys of all requests in both engines, at each moment.",
        "lost": "Count the positions at which the keys of that request differ at that moment, and at no later one.",
        "source": (
            "Before that step all three show the same last block. Print `session.table` before and after it: one of "
            "their last blocks is the old one."
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
        "`place` asks for one copy for each session that must leave a shared block. Here three sessions share one, "
        "and all are about to write into it: two leave it, so there are two copies with one source. The colleague "
        "keys them by their source, and the second replaces the first. The first session has a block of its own with "
        "room, so the audit finds nothing, but nobody has copied the old keys into it. With one fork, or with the "
        "second a step later, each source is copied once."
    ),
)


PLAIN, COPIED = (costs.INSIDE, costs.NEARLY_FULL, costs.FULL, costs.SAME_SLOT), (costs.INSIDE_FORKED, costs.FULL_SHARED)
GATES = ((4, None), (5, 4), (5, None))
GATED = tuple(costs.with_gates(step, *gates) for step in (costs.SAME_SLOT, costs.INSIDE) for gates in GATES)

COURSE = Course(
    number="062",
    world=KVAppend,
    exercise=EXERCISE,
    bug=BUG,
    idea=(
        Bound("stores of K and V", (*PLAIN, *COPIED), "stores"),
        Bound("index tensors", PLAIN, "index_tensors", spare=1),
        Bound("index tensors", (*COPIED, *GATED), "index_tensors", spare=3),
        Bound("copies of rows of K and V", PLAIN, "rows", spare=2),
        Bound("copies of rows of K and V", COPIED, "rows", spare=4),
        Bound("operations beyond those of half the sessions", (*PLAIN, *COPIED), costs.growth),
        Bound("layers without a kernel", GATED[:2], "no_launch"),
        Bound("kernels launched", GATED, "launches"),
    ),
    let_in="the kernels of large batches",
)
