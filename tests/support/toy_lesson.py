"""A toy lesson, as a later one would be written: a part, a rung of the ladder, and a course. Nothing registers it."""

from collections.abc import Iterator
from dataclasses import replace

from rosecourse import EngineConfig, lesson
from rosecourse.kv.buffers import index_tensor
from rosecourse.lab.course.costs import Cost, ideas
from rosecourse.lab.course.form import LINE, Bug, Course, Exercise
from rosecourse.lab.course.scenes import Played, Sessions, Truth, first_wrong_keys, start_lengths, steps
from rosecourse.lab.world.situations import INSIDE, always, gated, of
from rosecourse.lab.world.worlds import KV_APPEND
from rosecourse.lessons.workloads import A, C
from tests.support.right_parts import copied

LAST = lesson("061")  # of the rungs whose parts are of the same kind


class ToyAppend:
    """Looks blocks up in the manager's view of those in use: no call of `info` is left."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.infos = kv.blocks_in_use

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, shared = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.infos[block_ids[-1]] if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.infos[block_ids[-1]]
            if info.owners > 1:
                shared.append(b)
            else:
                rows.append(b)
                infos.append(info)
        if rows:
            self.write(layer_idx, rows, infos, key_new, value_new)
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, rows, infos, key_new, value_new):
        if len(rows) != len(key_new):
            chosen = index_tensor(rows, self.kv.device)
            key_new, value_new = key_new.index_select(0, chosen), value_new.index_select(0, chosen)
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        positions = [info.length for info in infos]
        constant = all(pos == positions[0] for pos in positions)
        slots = positions[0] if constant else index_tensor(positions, self.kv.device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
        for info in infos:
            info.length += 1


OwnToy = copied(ToyAppend)


class WrongToy(ToyAppend):
    """Has the idea, and K and V the wrong way round."""

    def __call__(self, sessions, keys, values):
        super().__call__(sessions, values, keys)


def scene(engine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, {"A": 5, "B": 4, "C": 5})
    yield sessions
    yield from steps(engine, sessions, 2)


def truth(hunt: Played, model) -> Truth:
    *_, wrong = first_wrong_keys(hunt, model)
    name, _, position = wrong[0]
    return {"session": {name}, "position": {str(position)}}


INFO_CALLS = Cost("calls of info", lambda seen: seen.counts.calls_of("info"))

COLLEAGUES_FILE = """\
from rosecourse.kv.buffers import index_tensor
from tests.support.toy_lesson import ToyAppend


class Colleague(ToyAppend):
    def write(self, layer, rows, infos, k, v):
        chosen, positions = index_tensor(rows, self.kv.device), [info.length for info in infos]
        blocks = index_tensor([info.block_index for info in infos], self.kv.device)
        constant = positions[-1] == positions[0]
        slots = positions[0] if constant else index_tensor(positions, self.kv.device)
        self.kv.k_layers[layer][blocks, :, slots] = k[chosen]
        self.kv.v_layers[layer][blocks, :, slots] = v[chosen]
        for info in infos:
            info.length += 1
"""

RUNG = LAST.then("999", "toy", A, kv_append=ToyAppend)
COURSE = Course(
    number="999",
    world=KV_APPEND,
    exercise=Exercise(
        name="MyAppend",
        difficulty=1,
        minutes=5,
        text="Look the blocks up in the view of those in use.",
        docstring="Put the new token's K and V into the cache.\n\nNow it asks `info` for every block.",
        goals={
            "self.kv = kv": "1. keep the view of the blocks in use",
            "for b, block_ids in enumerate(block_ids_list):": "2. look up in it",
        },
        look="Look at `kv.blocks_in_use`.",
        do="Keep the view when the part is built.",
    ),
    bug=Bug(
        minutes=5,
        symptom="A request of another length between two of the same goes wrong.",
        questions={"session": "which one", "position": "where its wrong key is", "line": LINE},
        hints={"session": "Compare keys.", "position": "Compare all of its keys.", "line": "Which positions count?"},
        tools=("`bug.key_at(engine.kv, session, position)` is a key.",),
        source=COLLEAGUES_FILE,
        fault="constant = positions[-1] == positions[0]",
        mended="constant = all(pos == positions[0] for pos in positions)",
        config=EngineConfig(block_size=8, max_batch_size=4, max_seq_len=48, prefix_cache=False),
        scene=scene,
        truth=truth,
        explanation="It looks at the ends alone.",
    ),
    ideas=ideas((INSIDE,), INFO_CALLS),
)


# -- with kernels -----------------------------------------------------------------------------------------------------


class ToyWithKernels(LAST.after.kv_append):
    """Launches the course's kernels."""


LARGE = gated("at the same slot, and let in", of(always(5)), 2, None)
KERNEL_RUNG = LAST.then(
    "998", "toy with kernels", C, kernels=("kv_append_triton_full_batch",), kv_append=ToyWithKernels
)
KERNEL_COURSE = replace(COURSE, number="998", ideas=ideas((LARGE,), INFO_CALLS))
