"""Lesson 062, one table for all layers: blocks and slots are found once a step, and the layers only write."""

from ...engine.engine import InferenceEngine
from ..checking import costs
from ..checking.costs import Bound
from ..checking.models.appends import KVAppend
from .form import KEY_AT, LINE, Course, small
from .scenes import Moments, Played, Truth, first_wrong_keys, fork, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 5, "B": 6})
    yield sessions
    yield from steps(engine, sessions, 1)
    sessions["F"], sessions["G"] = fork(engine, sessions["A"]), fork(engine, sessions["A"])
    yield from steps(engine, sessions, 6)


def truth(hunt: Played) -> Truth:
    _, ours, _, wrong = first_wrong_keys(hunt)
    (name,) = {name for name, _, _ in wrong}
    newest = ours[name].num_cached_tokens - 1
    assert newest not in {position for _, _, position in wrong}  # what is written anew is right
    source = ours["G"].table[-1]  # the last one to be placed has the original to itself
    return {"session": {name}, "lost": {str(len(wrong))}, "source": {str(source)}}


PLAIN, COPIED = (costs.INSIDE, costs.NEARLY_FULL, costs.FULL, costs.SAME_SLOT), (costs.INSIDE_FORKED, costs.FULL_SHARED)
GATES = ((4, None), (5, 4), (5, None))
GATED = tuple(costs.with_gates(step, *gates) for step in (costs.SAME_SLOT, costs.INSIDE) for gates in GATES)

COURSE = Course(
    world=KVAppend,
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
    source='''\
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
''',
    fault=(
        "        moves = {move.source: move for move in self.kv.place(owners)}  # each block once\n"
        "        for old, new in moves.values():\n"
    ),
    mended="        for old, new in self.kv.place(owners):  # one block may be copied several times\n",
    config=small(4, 4),
    scene=scene,
    truth=truth,
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
