"""Lesson 063, slots from the table: the device reads each slot off the block table, by its session's position."""

import torch

from ...engine.engine import InferenceEngine
from ..checking import costs
from ..checking.costs import Bound
from ..checking.models.appends import AppendByTable
from .form import KEY_AT, LINE, Course, small
from .scenes import Moments, Played, Truth, first_wrong_keys, fork, key_at, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 8, "B": 5})
    yield sessions
    sessions["fork"] = fork(engine, sessions["A"])
    others = {name: session for name, session in sessions.items() if name != "A"}
    for _ in steps(engine, others, 2):  # A waits
        yield sessions
    yield from steps(engine, sessions, 4)


def truth(hunt: Played) -> Truth:
    right, ours, broken, wrong = first_wrong_keys(hunt)
    session, position = next((session, position) for name, session, position in wrong if name == "A")
    there, child = key_at(broken.kv, session, position), ours["fork"]
    whose = (n for n in range(child.num_cached_tokens) if torch.equal(key_at(right.kv, child, n), there))
    return {"position": {str(position)}, "belongs": {str(next(whose))}}


ANY = (costs.INSIDE, costs.NEARLY_FULL, costs.FULL, costs.SAME_SLOT, costs.INSIDE_FORKED)
GATED = tuple(costs.with_gates(step, 4, None) for step in (costs.INSIDE, costs.SAME_SLOT, costs.NEARLY_FULL))
BELOW = costs.with_gates(costs.INSIDE, 5, None)

COURSE = Course(
    world=AppendByTable,
    symptom=(
        "A request whose prompt ends exactly with a block has a fork. The fork continues, and the request waits. The "
        "fork is wrong from its second step on. When the request continues, its own tokens are wrong too, although it "
        "made no step in between. By then a third request, whose prompt ended inside a block, is wrong too."
    ),
    tools=(KEY_AT,),
    questions={
        "position": "the position at which a key of `A` has changed while `A` waited",
        "belongs": "the position of the fork's token whose key lies there now",
        "line": LINE,
    },
    hints={
        "position": "Compare all keys of `A`, position by position, at moment 0 and after the first step.",
        "belongs": "Compare that key with all keys that the right engine shows for the fork at the same moment.",
        "line": "In which block does the next token belong if the ones before it fill theirs exactly?",
    },
    source='''\
import torch

from rosecourse.kernels import kv_append_by_table, triton_runs_on


class Appender:
    """Looks up one block a session; what writes is told that block and the place in it."""

    def __init__(self, model, kv, config):
        self.keys, self.values, self.room = kv.k_layers, kv.v_layers, kv.block_size
        gate = 0 if kv.device.type == "cuda" else config.triton_kv_append_min_batch
        self.kernel_from = gate if triton_runs_on(kv.device) else float("inf")

    def __call__(self, inputs):
        lengths = inputs.context_lens
        last = (lengths - 1).clamp(min=0) // self.room  # of the blocks with so many tokens
        block = torch.take_along_dim(inputs.block_tables[0], last.unsqueeze(1), dim=1)
        place = lengths.remainder(self.room)
        large = lengths.numel() >= self.kernel_from
        return (self.launching if large else self.storing)(block, place)

    def launching(self, block, place):
        """One launch a layer: in a table of one column, the place alone says where."""

        def launch(layer, key, value):
            kv_append_by_table(self.keys[layer], self.values[layer], key, value, block, place)

        return launch

    def storing(self, block, place):
        rows = block.squeeze(1)

        def store(layer, key, value):
            for cache, new in ((self.keys[layer], key), (self.values[layer], value)):
                cache[rows, :, place] = new

        return store
''',
    fault="        last = (lengths - 1).clamp(min=0) // self.room  # of the blocks with so many tokens\n",
    mended="        last = lengths // self.room  # the next token's\n",
    config=small(4, 4),
    scene=scene,
    truth=truth,
    idea=(
        Bound("tensors of integers", (*ANY, *GATED), "index_tensors", spare=2),
        Bound("arrays built of Python numbers", ANY, "arrays"),
        Bound("stores of K and V", ANY, "stores"),
        Bound("copies of rows of K and V", ANY, "rows", spare=6),  # of each layer's new rows, in one piece
        Bound("copies of rows of K and V", GATED, "rows"),
        Bound("operations beyond those of half the sessions", ANY, costs.growth),
        Bound("kernels launched", (*GATED, BELOW), "launches"),
        Bound("layers without a kernel", GATED, "no_launch"),
    ),
    unseen="reads behind a row, and whether a GPU gets the kernel for every batch",
)
