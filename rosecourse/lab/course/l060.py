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
        "Goal: make no index tensor where a plain number would do, or where it only says that the batch is in order; "
        "and copy no row of K and V that can be stored as it is."
    ),
    goals={},
    look=(
        "The scan goes through the batch in order, so that `batch_idx` ascends. How many entries must it have, then, "
        "to be `[0, 1, …, B−1]`? And when do the positions say no more than a single number?"
    ),
    do=(
        "There are two questions, and they are independent. Is the batch whole? Then `batch_idx` has as many entries "
        "as `key_new` has rows, and K and V can be stored as they are, without `index_select`. Is the position "
        "the same for all of them? Then a number takes the place of the tensor of positions. So there are four "
        "combinations, and all of them end in the same store, `k_layer[blocks, :, slots] = rows`: `slots` is a number "
        "or a tensor, `rows` is all of `key_new` or a selection."
    ),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, {"A": 4, "B": 12, "C": 20, "D": 4})
    yield sessions
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("A"))  # it has been cancelled
    sessions |= start(engine, {"E": [41] * 10})  # the newcomer
    yield from steps(engine, sessions, 3)


def truth(hunt: Played, model: Model) -> Truth:
    right, ours, _, wrong = first_wrong_keys(hunt, model)
    lost = [(name, at) for name, session, at in wrong if at < session.num_cached_tokens - 1]
    (position,) = (at for name, at in lost if name == "C")
    size = right.kv.block_size
    whose = {name for name, one in ours.items() if (one.num_cached_tokens - 1) % size == position % size}
    return {"position": {str(position)}, "whose": whose}


COLLEAGUES_FILE = '''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Tells the device only what it cannot know."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.size, self.level = 0, False

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
                self.kv.append_token(
                    layer, sessions[row].block_ids_per_layer[layer], new[0][row], new[1][row]
                )

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
        for cache, rows_of_one in zip(
            (self.kv.k_layers[layer], self.kv.v_layers[layer]), new, strict=True
        ):
            cache[where, :, slots] = rows_of_one
        for block in blocks:
            block.length += 1

    def slots_of(self, blocks):
        """Where in its block each session writes: a number
        if it is the same for all of them, else a tensor."""
        slots = [block.length for block in blocks]
        if len(slots) != self.size:  # who stands at one slot moves on together
            self.size, self.level = len(slots), len(set(slots)) == 1
        return min(slots) if self.level else index_tensor(slots, self.kv.device)
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "Four requests are right, step after step. Then one is cancelled and another takes its place, and soon there "
        "are wrong tokens in requests that have nothing to do with either. If the newcomer had come one step later, "
        "nothing would have happened."
    ),
    tools=(KEY_AT,),
    questions={
        "position": "request `C` loses a key that it had: the position of that key, a number",
        "whose": "the name of the request in whose slot all requests are written in that step",
        "line": LINE,
    },
    hints={
        "position": (
            "Compare `bug.key_at(engine.kv, session, position)` of both engines at every position, at the first moment "
            "with the newcomer. Two things go wrong: a new key is missing where it belongs, and it has been written "
            "over an old one. We are looking for the old one."
        ),
        "whose": "Write down the slot of each request in that step. Which of them is used for all?",
        "line": "When does this part look at the slots, and how does it know that what it saw still holds?",
    },
    source=COLLEAGUES_FILE,
    fault=(
        "        if len(slots) != self.size:  # who stands at one slot moves on together\n"
        "            self.size, self.level = len(slots), len(set(slots)) == 1\n"
    ),
    mended="        self.size, self.level = len(slots), len(set(slots)) == 1  # as many need not be the same\n",
    config=EngineConfig(block_size=8, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The part looks at all slots, but not in every step. Requests at one slot move on together, so the answer is "
        "kept until the batch changes; and that is told by its size. Here one request leaves and another comes between "
        "the same two steps. The size stays four, the part still believes that all are at one slot, and everyone is "
        "written into the slot of the newcomer, the lowest: over an old key, if that slot was filled, while the slot "
        "of the new key stays empty. Had the newcomer come a step later, the size would have gone from four to three "
        "and back, and the part would have looked again. An answer may be kept only together with all that it depends "
        "on."
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
