"""Lesson 060, identity and constant position: index tensors that say nothing are left out."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.situations import FULL, SIMPLE, Situation, always, of, same_slot
from ..world.worlds import KV_APPEND
from .costs import COPIES, INDEX_TENSORS, ideas
from .form import LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, first_wrong_keys, start, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=1,
    minutes=15,
    text=(
        "Leave out the index tensors that say nothing. As it stands, the cell runs and is right: it makes "
        "three index tensors and two selections a layer."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Now `write` makes three index tensors and selects rows of K and V in every layer. Make it leave out "
        "the selection where the batch is whole, and the tensor of positions where all positions are the "
        "same."
    ),
    goals={
        "idx_t = index_tensor(batch_idx, device)": (
            "1. is the batch whole? Then there is nothing to select, and no tensor of rows to make"
        ),
        "pos_t = index_tensor([info.length for info in infos], device)": (
            "2. is the position constant? Then a number will do. Look at every position"
        ),
        "k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)": (
            "3. store, in each of the four combinations of 1 and 2"
        ),
    },
    look=(
        "The scan goes through the batch in order, so `batch_idx` ascends. How many entries must it have, "
        "then, to be `[0, 1, …, B−1]`? And `pos_t` in the cell with the four kinds of traffic: which batch "
        "has all positions alike although the requests have different lengths?"
    ),
    do=(
        "* Step 1: compare `len(batch_idx)` with `len(key_new)`; else `index_select` as before.\n"
        "* Step 2: `infos[...].length` of *all* of them. Taking the first for all is right for a benchmark, "
        "and wrong.\n"
        "* Step 3: `k_layer[blk_t, :, slots] = key_new`, where `slots` is a number or a tensor, and "
        "`key_new` all rows or the selected ones: the two choices are independent."
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


BUG = Bug(
    minutes=10,
    symptom=(
        "Four requests of different lengths are right, step after step. Then one is cancelled, another joins, "
        "and from that step on there are wrong tokens in requests that have nothing to do with either. Had the "
        "newcomer been one token longer, nothing would have happened."
    ),
    questions={
        "session": "the request that loses a key which it had",
        "position": "the position of the key that is lost",
        "line": LINE,
    },
    hints={
        "session": (
            "Compare `bug.key_at(engine.kv, session, position)` of both engines at every position, in the step "
            "in which the newcomer first takes part."
        ),
        "position": (
            "Two things go wrong: a new key is not where it belongs, and it is where another one was. The second "
            "is asked for."
        ),
        "line": (
            "Write down the slot of each request in that step, in the order of the batch. What does the "
            "condition make of them?"
        ),
    },
    old="const_pos = all(pos == pos0 for pos in positions)",
    new="const_pos = positions[-1] == pos0",
    config=EngineConfig(block_size=8, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The condition compares the last position with the first, which would do for a sorted batch. When the "
        "newcomer has the slot of the first request by chance, everyone between is written into that slot too: "
        "over an old key, if the slot was filled, and the slot of the new key stays empty. Whether a number may "
        "stand for a list can only be said by looking at all of it."
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
