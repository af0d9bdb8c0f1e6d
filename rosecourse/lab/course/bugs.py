"""The bugs of the hunts: for each lesson its symptom, the replacement that makes it, what is asked, and the hints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..hunts import scenes

LINE = "the line of the listing that is to blame: its number, or its text"


@dataclass(frozen=True)
class Bug:
    """One bug. old, new: what is replaced in the source of the lesson's part. hints: for a wrong answer."""

    minutes: int
    symptom: str
    questions: Mapping[str, str]
    hints: Mapping[str, str]
    old: str
    new: str
    config: EngineConfig
    scene: Callable[[InferenceEngine], Iterator[scenes.Sessions]]
    truth: Callable[[Any, Model], scenes.Truth]
    explanation: str
    needs_triton: bool = False


BUGS = {
    "036": Bug(
        minutes=10,
        symptom=(
            "A request is forked in the middle of a block. From then on one of the two goes on as if it had read the "
            "other's words. When it comes to its next block, it reads its own again. Requests that are never forked "
            "are right. No key is ever written to a wrong place."
        ),
        questions={
            "session": "which of `S`, `T` and `fork` is told to read a wrong block",
            "step": "after which step of the scene the part first gives a wrong table",
            "block": "the physical block of layer 0 that the wrong row shows",
            "line": LINE,
        },
        hints={
            "session": (
                "Set the row of layer 0 that the part gives for each session beside its `block_ids_per_layer[0]`."
            ),
            "step": (
                "`engine.decode_step.block_tables(list(sessions.values()))[0]` gives the tables at any moment; look "
                "after every step. The moment before the first step is number 0."
            ),
            "block": "Not the block that the session holds, but the one that its row shows instead.",
            "line": "A row is built anew when its signature changes. Which change does this signature not see?",
        },
        old="ids[-1] if ids else -1)",
        new="ids[0] if ids else -1)",
        config=EngineConfig(block_size=8, max_batch_size=4, max_seq_len=48, prefix_cache=False),
        scene=scenes.scene_036,
        truth=scenes.truth_036,
        explanation=(
            "The signature looks at the *first* id. A list that grows changes its length, so rollovers are seen. A "
            "copy-on-write replaces the *last* id and leaves the length as it is: it is not seen, and the row goes "
            "on showing the block that now belongs to the other one. The next rollover writes the end of the row "
            "anew, and the trace is gone. That is why the signature holds the **last id** beside the length."
        ),
    ),
    "038": Bug(
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
        scene=scenes.scene_038,
        truth=scenes.truth_038,
        explanation=(
            "The slow path counts its rows from the end of the fast ones, as if the batch had been sorted: fast rows "
            "first, slow rows behind. It has not. `key_new` stays in the order of the sessions, and `b` is the row. "
            "The two agree when nobody or everybody is slow, and when the slow ones stand last, which is every test "
            "with equal lengths, and some with mixed ones."
        ),
    ),
    "059": Bug(
        minutes=15,
        symptom=(
            "A request and its fork part exactly at the end of a block, and both go on with the right tokens. Then "
            "the request is done, its blocks are freed, and a new request comes. From then on the fork's tokens are "
            "wrong, although its table has not changed."
        ),
        questions={
            "step": "after which step of the scene the books are wrong for the first time, long before a token is",
            "block": "the block id of layer 0 that is counted wrong",
            "line": LINE,
        },
        hints={
            "step": (
                "`engine.kv.check([s.block_ids_per_layer for s in sessions.values()])` says when the books are "
                "wrong; ask it at every moment of the scene. The moment before the first step is number 0."
            ),
            "block": (
                "Count for each block of layer 0 how many tables show it, and compare with `kv.info(block).owners`."
            ),
            "line": "Who goes on owning a full block after the rollover?",
        },
        old="start = info.start + info.length if info else 0\n",
        new=(
            "start = info.start + info.length if info else 0\n"
            "                if info and info.owners > 1:\n"
            "                    info.owners -= 1  # from here on this session has a block of its own\n"
        ),
        config=EngineConfig(block_size=4, max_batch_size=4, max_seq_len=48, prefix_cache=False),
        scene=scenes.scene_059,
        truth=scenes.truth_059,
        explanation=(
            "After a copy-on-write a session leaves the shared block, and its owner count falls. After a rollover it "
            "does not leave: the full block stays in its table and is read at every step. Here it is taken off the "
            "count, so that the block has one owner too few. When the request is freed, the count comes to 0, the "
            "block is given to somebody else, and the fork reads the newcomer's keys. The tokens go wrong steps "
            "later, in another request: only the books say it at once."
        ),
    ),
    "060": Bug(
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
        scene=scenes.scene_060,
        truth=scenes.truth_060,
        explanation=(
            "The condition compares the last position with the first, which would do for a sorted batch. When the "
            "newcomer has the slot of the first request by chance, everyone between is written into that slot too: "
            "over an old key, if the slot was filled, and the slot of the new key stays empty. Whether a number may "
            "stand for a list can only be said by looking at all of it."
        ),
    ),
    "061": Bug(
        minutes=15,
        symptom=(
            "A request is forked in the middle of a block. It and its fork are right. The *other* requests of the "
            "batch go wrong in that step, and only in that step: before it and after it they get the right keys. "
            "With a threshold above the size of the batch, nothing happens."
        ),
        questions={
            "session": "the request that has the key of `fork` in its own block",
            "position": "the position at which it stands",
            "line": LINE,
        },
        hints={
            "session": (
                "In the step of the fork, compare each request's newest key with those that the right engine has "
                "written: `bug.key_at(engine.kv, session, session.num_cached_tokens - 1)`."
            ),
            "position": "The keys before it are right, and so are those after it.",
            "line": (
                "Count the launches of the two engines in that step. Which kernel runs in one and not in the other, "
                "and what does it take for granted?"
            ),
        },
        old="if self.triton and full_fast and const_pos and n >= self.full_batch_min_batch:",
        new="if self.triton and const_pos and n >= self.full_batch_min_batch:",
        config=EngineConfig(
            block_size=8, max_batch_size=8, max_seq_len=48, prefix_cache=False, triton_kv_append_min_batch=2
        ),
        scene=scenes.scene_061,
        truth=scenes.truth_061,
        explanation=(
            "The gate asks for a large batch with a constant position, and forgets to ask whether it is *whole*. The "
            "full-batch kernel takes row b of `key_new` for block b of its list. In the step of the fork two "
            "requests go to the slow path, the list has only the others, and their blocks get the rows that stand "
            "first in the batch. Every other step has a whole batch."
        ),
        needs_triton=True,
    ),
}
