"""Lesson 060, identity and constant position: index tensors that say nothing are left out."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.situations import FULL, SIMPLE, Situation, always, of, same_slot
from ..world.worlds import KV_APPEND
from .costs import COPIES, INDEX_TENSORS, ideas
from .form import KEY_AT, LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, first_wrong_keys, start, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=2,
    minutes=25,
    text="This is the part as it is before the lesson. Its docstring states the goal.",
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Goal: no index tensor is made that says nothing, and no row of K and V is copied that is where it belongs."
    ),
    goals={},
    look=(
        "The scan goes through the batch in order, so that `batch_idx` ascends. How many entries must it have, then, "
        "to be `[0, 1, …, B−1]`? And when do the positions say no more than a single number? Is it enough to look at "
        "the first and the last?"
    ),
    do=(
        "There are two questions, and they are independent. Is the batch whole? Then `batch_idx` has as many entries "
        "as `key_new` has rows, and K and V can be stored as they are, without `index_select`. Is the position "
        "constant? Then a number takes the place of the tensor of positions; look at all of them, since any one may "
        "differ. So there are four combinations, and all of them end in the same store, `k_layer[blocks, :, slots] = "
        "rows`: `slots` is a number or a tensor, `rows` is all of `key_new` or a selection."
    ),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, {"A": 7, "B": 4, "C": 6, "D": 2})
    yield sessions
    yield from steps(engine, sessions, 2)
    del sessions["D"]  # it has been cancelled
    sessions["E"] = start(engine, {"E": [41] * 9})["E"]
    yield from steps(engine, sessions, 3)


def truth(hunt: Played, model: Model) -> Truth:
    _, _, _, wrong = first_wrong_keys(hunt, model)
    old = [(name, position) for name, session, position in wrong if position < session.num_cached_tokens - 1]
    return {"session": {old[0][0]}, "position": {str(old[0][1])}}


COLLEAGUES_FILE = '''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Tells the device only what it cannot know."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer, new in enumerate(zip(keys, values, strict=True)):
            writers, copiers = {}, []
            for row, session in enumerate(sessions):
                block = self.block_for(layer, session.block_ids_per_layer[layer])
                if block.owners == 1:
                    writers[row] = block
                else:
                    copiers.append(row)
            if writers:
                self.store(layer, new, list(writers), list(writers.values()))
            for row in copiers:
                self.kv.append_token(layer, sessions[row].block_ids_per_layer[layer], new[0][row], new[1][row])

    def block_for(self, layer, ids):
        """The last block of a session, behind which a new one has been put if it was full."""
        if not ids or self.kv.info(ids[-1]).length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, len(ids) * self.kv.block_size))
        return self.kv.info(ids[-1])

    def store(self, layer, new, rows, blocks):
        """Write these rows of K and V into the next slots of their blocks."""
        if len(rows) < len(new[0]):
            chosen = index_tensor(rows, self.kv.device)
            new = [tensor.index_select(0, chosen) for tensor in new]
        where = index_tensor([block.block_index for block in blocks], self.kv.device)
        slots = self.slots_of(blocks)
        for cache, rows_of_one in zip((self.kv.k_layers[layer], self.kv.v_layers[layer]), new, strict=True):
            cache[where, :, slots] = rows_of_one
        for block in blocks:
            block.length += 1

    def slots_of(self, blocks):
        """Where in its block each session writes: a number if it is the same for all of them, else a tensor."""
        oldest, newest = blocks[0].length, blocks[-1].length  # the batch is in the order of arrival
        if oldest == newest:
            return oldest
        return index_tensor([block.length for block in blocks], self.kv.device)
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "Four requests of different lengths are right, step after step. Then one is cancelled and another joins, and "
        "from that step on there are wrong tokens in requests that have nothing to do with either. If the newcomer "
        "had been one token longer, nothing would have happened."
    ),
    tools=(KEY_AT,),
    questions={
        "session": "the name of the request that loses a key which it had",
        "position": "the position of the key that is lost, a number",
        "line": LINE,
    },
    hints={
        "session": (
            "Compare `bug.key_at(engine.kv, session, position)` of both engines at every position, in the step in "
            "which the newcomer first takes part."
        ),
        "position": (
            "Two things go wrong: a new key is missing where it belongs, and it has been written over an old one. We "
            "are looking for the old one."
        ),
        "line": "Write down the slot of each request in that step, in the order of the batch. Which of them are asked?",
    },
    source=COLLEAGUES_FILE,
    fault=(
        "        oldest, newest = blocks[0].length, blocks[-1].length  # the batch is in the order of arrival\n"
        "        if oldest == newest:\n"
    ),
    mended=("        oldest = blocks[0].length\n        if all(block.length == oldest for block in blocks):\n"),
    config=EngineConfig(block_size=8, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The condition looks at the first and the last request, which would do if slots rose or fell along the batch. "
        "They do not: the order of arrival says nothing about the slot within a block. When the newcomer happens to "
        "have the slot of the first request, everyone between them is written into that slot too: over an old key, if "
        "the slot was filled, while the slot of the new key stays empty. Whether a number may stand for a list can "
        "only be said by looking at all of it."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------

SAME_SLOT = (
    Situation("at the same slot", of(always(5))),
    Situation("at the same slot, 2 of them in shared blocks", of(always(5), forks=2)),
    Situation("at the same slot of first, second and third blocks", of(same_slot(5)), layers=3),
    Situation("at the first slot of their second blocks", of(always(9)), n=5, layers=3),
)

COURSE = Course(
    number="060",
    world=KV_APPEND,
    exercise=EXERCISE,
    bug=BUG,
    ideas=ideas((*SAME_SLOT, *SIMPLE, *FULL), COPIES, INDEX_TENSORS),
)
