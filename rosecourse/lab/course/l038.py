"""Lesson 038, the batched append: all that is simple is written with one store a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.situations import INSIDE, SIMPLE, SOME_FULL, Situation
from ..world.worlds import KV_APPEND
from .costs import CALLS, LOOP, STORES, Seen, append_tokens, ideas
from .form import KEY_AT, LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, first_wrong_keys, key_at, owner_of, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=2,
    minutes=40,
    text=(
        "Append a layer's whole batch at once. As it stands, the cell runs and is right, with one call of "
        "`append_token` for every layer and every session. Write everything that is simple together, and leave only "
        "the rest to `append_token`."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Now it makes L x B calls of `append_token` in a step. Make it write all tokens of a layer that only go into a "
        "free slot with one indexed store for K and one for V."
    ),
    goals={
        "for b, block_ids in enumerate(block_ids_list):": (
            "Goal: while every session has a block of its own with a free slot, a layer makes one store for K and one "
            "for V, however many sessions there are, and `append_token` is not called."
        ),
    },
    look=(
        "`kind_of_append` above tells four kinds apart. What does `self.kv.info(block_ids[-1])` say of a session's "
        "last block, and which of it decides that an append is nothing but a write into the next slot? And who counts "
        "the token in its block if `append_token` is not called?"
    ),
    do=(
        "Go through the batch once and part it in two. Simple is a session whose last block has a free slot and one "
        "owner; everything else goes to `append_token` as before. For the simple ones note the row of the batch, the "
        "block's index and the slot. `index_tensor(numbers, self.kv.device)` makes an "
        "index tensor of each of these lists; then one indexed assignment, `k_layer[blocks, :, slots] = ...`, takes "
        "the selected rows of K, and another those of V. Skip it if nobody is simple. Afterwards raise the `length` "
        "of the blocks that you have written, and of no others: `append_token` counts its own."
    ),
    wanted=("index_tensor",),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, {"A": 6, "B": 5, "C": 7, "D": 4})
    yield sessions
    yield from steps(engine, sessions, 8)


def truth(hunt: Played, model: Model) -> Truth:
    right, ours, broken, wrong = first_wrong_keys(hunt, model)
    name, session, position = wrong[0]
    whose = owner_of(key_at(broken.kv, session, position), right.kv, ours)
    return {"session": {name}, "position": {str(position)}, "whose": {whose}}


COLLEAGUES_FILE = '''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Writes what has room together, and leaves the others to the manager."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            blocks = [self.block_with_room(ids) for ids in tables]
            easy = [row for row, block in enumerate(blocks) if block is not None]
            others = [ids for ids, block in zip(tables, blocks, strict=True) if block is None]
            if easy:
                self.store(layer, easy, [blocks[row] for row in easy], k, v)
            for ids, one_k, one_v in zip(others, k[len(easy) :], v[len(easy) :], strict=True):
                self.kv.append_token(layer, ids, one_k, one_v)

    def block_with_room(self, ids):
        """A session's last block if the next token
        can simply be written into it, else None."""
        last = self.kv.info(ids[-1]) if ids else None
        return last if last and last.owners == 1 and last.length < self.kv.block_size else None

    def store(self, layer, rows, blocks, k, v):
        """Write these rows of K and V, each into the next slot of its block."""
        taken = index_tensor(rows, self.kv.device)
        where = index_tensor([block.block_index for block in blocks], self.kv.device)
        slots = index_tensor([block.length for block in blocks], self.kv.device)
        for cache, new in ((self.kv.k_layers[layer], k), (self.kv.v_layers[layer], v)):
            cache[where, :, slots] = new[taken]
        for block in blocks:
            block.length += 1
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "In a batch of mixed lengths, a request goes wrong in the step in which it begins a new block; its text shows "
        "it some tokens later. If all requests have the same length, they are right."
    ),
    tools=(KEY_AT,),
    questions={
        "session": "which of `A`, `B`, `C`, `D` is the first, in time, to get a wrong key",
        "position": "the position of that key, a number",
        "whose": "the name of the request whose key it is",
        "line": LINE,
    },
    hints={
        "session": (
            "Play the scene with both engines and compare `bug.key_at(engine.kv, session, position)` at every moment. "
            "Only the first difference counts, since the tokens differ from there on."
        ),
        "position": "The step in which a request begins a block writes one key, into slot 0. Which position is that?",
        "whose": "Compare the wrong key with the keys that the right engine has written in the same step.",
        "line": "Which row of the new keys belongs to a session, and which row does this path give it?",
    },
    source=COLLEAGUES_FILE,
    fault="            for ids, one_k, one_v in zip(others, k[len(easy) :], v[len(easy) :], strict=True):\n",
    mended=(
        "            rest = [row for row, block in enumerate(blocks) if block is None]\n"
        "            left_k, left_v = k[rest].unbind(), v[rest].unbind()\n"
        "            for ids, one_k, one_v in zip(others, left_k, left_v, strict=True):\n"
    ),
    config=EngineConfig(block_size=4, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The others get the last rows of K and V, as if the batch had been sorted with the easy ones in front. It has "
        "not been sorted: `k` and `v` stay in the order of the sessions, and only the *lists* have been taken apart. "
        "The lengths fit, so that even `strict=True` has nothing to object to. The two orders agree if nobody or "
        "everybody has room, and if those without room stand last: in every test with equal lengths, and in some with "
        "mixed ones."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------


def one_free_slot(at: Situation, seen: Seen, right: int) -> str:
    just_these = at is INSIDE and append_tokens(seen) - right == seen.one_free > 0
    return "a block with one free slot is simple too" if just_these else ""


COURSE = Course(
    number="038",
    world=KV_APPEND,
    exercise=EXERCISE,
    bug=BUG,
    ideas=(
        *ideas((*SIMPLE, SOME_FULL), replace(CALLS, hint=one_free_slot)),
        *ideas((at for at in (*SIMPLE, SOME_FULL) if at.can_be_halved), LOOP),
        *ideas(SIMPLE, STORES),
    ),
)
