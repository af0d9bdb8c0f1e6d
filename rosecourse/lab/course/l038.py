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
from .form import LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, first_wrong_keys, key_at, owner_of, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=2,
    minutes=30,
    text=(
        "Append a layer's whole batch at once. As it stands, the cell runs and is right: it calls "
        "`append_token` for every layer and every session. Steps 1 and 2 belong together; it is right before "
        "and after step 3."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Now it makes L x B calls of `append_token` in a step. Make `append_token_batch` write all that is "
        "simple with one indexed store for K and one for V, and leave only the rest to `append_token`."
    ),
    goals={
        "for b, block_ids in enumerate(block_ids_list):": (
            "1. scan: who has a last block with a free slot, and for himself alone? They go to `write`, "
            "together; all others to `append_token`, one by one"
        ),
        "self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])": (
            "2. who counts the tokens? `append_token` raises the `length` of a block by itself, `write` does not. "
            "And is there anybody to write?"
        ),
        "for b, info in zip(batch_idx, infos, strict=True):": (
            "3. store: the loop as one indexed store for K and one for V, with three index tensors: rows of "
            "the batch, blocks, slots (`index_tensor(numbers, self.kv.device)` makes one of a list)"
        ),
    },
    look=(
        "`kind_of_append` above tells four kinds apart. `self.kv.info(block_ids[-1])` says of a session's "
        "last block where it is (`block_index`), how many tokens it holds (`length`) and how many sessions "
        "own it (`owners`). Which of these decide that an append is only a write into the next slot?"
    ),
    do=(
        "* Step 1: three lists: the batch rows and the infos of the fast ones, the batch rows of the slow "
        "ones. Slow is: no block yet, a full one, or one with several owners.\n"
        "* Step 2: call `write` only if there is a fast one; then raise `length` of *their* blocks. The slow "
        "ones are known by their row `b` in the batch: their K is `key_new[b]`.\n"
        "* Step 3: `index_tensor(list, self.kv.device)` makes an index tensor. `key_new.index_select(0, "
        "rows)` are the K of the fast ones, and `k_layer[blocks, :, slots]` is where they go."
    ),
    stubs={
        "write": """
            for b, info in zip(batch_idx, infos, strict=True):
                self.kv.k_layers[layer_idx][info.block_index, :, info.length] = key_new[b]
                self.kv.v_layers[layer_idx][info.block_index, :, info.length] = value_new[b]
            """,
    },
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


BUG = Bug(
    minutes=15,
    symptom=(
        "In a batch of mixed lengths, a request goes wrong in the step in which it begins a new block; one or two "
        "tokens later its text shows it. When all requests have the same length, they are right, and the request "
        "that stands last in the batch is always right."
    ),
    questions={
        "session": "which of `A`, `B`, `C`, `D` is the first, in time, to get a wrong key",
        "position": "the position of that key",
        "whose": "the request whose key it is",
        "line": LINE,
    },
    hints={
        "session": (
            "Play the scene with both engines and compare `bug.key_at(engine.kv, session, position)`, step by "
            "step. Only the first difference counts: after it the tokens differ too."
        ),
        "position": "The step in which it begins a block writes one key, into slot 0: which position is that?",
        "whose": "Compare the wrong key with the keys that the right engine has written in the same step.",
        "line": "Which row of `key_new` is a session's, and which number does this path use for it?",
    },
    old=(
        "for b in slow_batch_idx:\n"
        "            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])"
    ),
    new=(
        "for row, b in enumerate(slow_batch_idx, start=len(fast_batch_idx)):\n"
        "            self.kv.append_token(layer_idx, block_ids_list[b], key_new[row], value_new[row])"
    ),
    config=EngineConfig(block_size=4, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The slow path counts its rows from the end of the fast ones, as if the batch had been sorted: fast rows "
        "first, slow rows behind. It has not. `key_new` stays in the order of the sessions, and `b` is the row. "
        "The two agree when nobody or everybody is slow, and when the slow ones stand last, which is every test "
        "with equal lengths, and some with mixed ones."
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
