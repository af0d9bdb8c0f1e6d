"""Lesson 061, the Triton full-batch append: one launch a layer, and a kernel with few arguments."""

from dataclasses import replace

from ...engine.engine import InferenceEngine
from ..checking.costs import INSIDE, SAME_SLOT, Bound, with_gates
from ..checking.models.appends import KVAppend
from .form import KEY_AT, LINE, NO_COPIES, Course, small
from .scenes import Moments, Played, Truth, first_wrong_keys, key_at, owner_of, start, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, dict.fromkeys("ABC", 4))
    yield sessions
    yield from steps(engine, sessions, 2)
    for name in "BAC":  # the order in which they are done
        engine.free(sessions[name])
    sessions = start(engine, {"D": [41] * 4, "E": [51] * 4, "F": [61] * 4})
    yield from steps(engine, sessions, 3)


def truth(hunt: Played) -> Truth:
    right, ours, broken, wrong = first_wrong_keys(hunt)
    holders = {
        owner_of(key_at(broken.kv, session, position), right.kv, ours): name for name, session, position in wrong
    }
    return {"session": {holders["D"]}, "position": {str(wrong[0][2])}}


GATES = ((1, None), (10**6, 4), (4, 10**6), (4, 4))  # thresholds: of any batch, of a whole one at one slot
LARGE = tuple(with_gates(step, *gates) for step in (SAME_SLOT, INSIDE) for gates in GATES)

SHARED = tuple(replace(with_gates(SAME_SLOT, gate, None), forks=1) for gate in (3, 4))

COURSE = Course(
    world=KVAppend,
    symptom=(
        "Three requests of equal length are right to the end. Three more of the same length follow on the same "
        "engine, and in their first decode step each gets the key of another. In a new engine they are right, and so "
        "are requests of mixed lengths, or fewer than the threshold."
    ),
    tools=(KEY_AT,),
    questions={
        "session": "the request that gets the key of `D` in its own block",
        "position": "the position at which it gets that key",
        "line": LINE,
    },
    hints={
        "session": (
            "After the first step of the second three, compare each request's newest key with all that the right "
            "engine has written: `bug.key_at(engine.kv, session, session.num_cached_tokens - 1)`."
        ),
        "position": "Compare all keys of that request at the first moment of the second three. One of them is wrong.",
        "line": (
            "Which kernel runs in that step, and what does it take for granted of the rows? Print the blocks of each "
            "request."
        ),
    },
    source='''\
from rosecourse.kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l060 import KVAppend


class Appender(KVAppend):
    """The part of lesson 060; a kernel writes large batches."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        runs = triton_runs_on(kv.device)
        self.kernel_from = config.triton_kv_append_min_batch if runs else float("inf")
        full_batch = runs and config.triton_kv_append_full_batch_min_batch
        self.full_batch_from = full_batch or self.kernel_from

    def write(self, layer, rows, blocks, k, v):
        """Write these rows of K and V, each into the next slot of its block."""
        if len(rows) < min(self.kernel_from, self.full_batch_from):
            super().write(layer, rows, blocks, k, v)
            return
        caches = self.kv.k_layers[layer], self.kv.v_layers[layer]
        order = sorted(range(len(rows)), key=lambda n: blocks[n].block_index)  # by address
        rows, blocks = [rows[n] for n in order], [blocks[n] for n in order]
        where = [block.block_index for block in blocks]
        slots = [block.length for block in blocks]
        complete, level = len(rows) == len(k), len(set(slots)) == 1
        if complete and level and len(rows) >= self.full_batch_from:
            where = index_tensor(where, self.kv.device)
            kv_append_triton_full_batch(*caches, k, v, where, slots[0])
        elif len(rows) >= self.kernel_from:
            kv_append_triton(*caches, k, v, *index_tensor([rows, where, slots], self.kv.device))
        else:
            super().write(layer, rows, blocks, k, v)
''',
    fault=(
        "        order = sorted(range(len(rows)), key=lambda n: blocks[n].block_index)  # by address\n"
        "        rows, blocks = [rows[n] for n in order], [blocks[n] for n in order]\n"
    ),
    mended="",
    config=small(8, 8, triton_kv_append_min_batch=2),
    scene=scene,
    truth=truth,
    idea=(
        Bound("kernels launched", (*LARGE, *SHARED), "launches"),
        Bound("layers without a kernel", (*LARGE, *SHARED), "no_launch"),
        Bound("stores of K and V", LARGE, "stores"),
        Bound("index tensors", LARGE, "index_tensors", spare=1),
        Bound("copies of rows of K and V", LARGE, "rows"),
    ),
    unseen=f"reads behind a row, a binary for each `pos`, a gate that does not ask for Triton, and {NO_COPIES}",
)
