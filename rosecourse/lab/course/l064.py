"""Lesson 064, rows that stay: a running session keeps its row on the device, and a step uploads what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.situations import SIMPLE, Situation, always, any_blocks, half_full, of
from ..world.worlds import ROWS_THAT_STAY
from . import starts
from .costs import INDEX_TENSORS, LOOP, Cost, Seen, ideas
from .form import LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, side_by_side, start, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyRows",
    difficulty=3,
    minutes=50,
    begins_as=starts.Rows,
    text=(
        "The cell holds rows that are right. They live in tensors that stay on the device, and yet every step forgets "
        "them and uploads all of them again. Let `plan` upload only what has changed since the last step, in `plan` "
        "itself and in helpers of your own. `forget` and `take` have to keep what you remember on the host in step "
        "with the device. The other methods can stay as they are."
    ),
    docstring=(
        "The rows of the last step's sessions, in its order; row b of every tensor is session b's.\n\n"
        "Goal: a step uploads what has changed, and nothing else. That is nothing inside a block, one number for a new "
        "block or for a token that somebody else has chosen, one row for a session that joins, and no more than the "
        "index of a gather when sessions leave or change places. However many sessions there are, it takes the same "
        "few operations."
    ),
    goals={},
    look=(
        "What does the device know after `advance` and `take`, although nobody has uploaded it? By what will you know "
        "in the next step that the session in a row is the one that was there?"
    ),
    do=(
        "Keep on the host what the device has: for each row the table, the last token, the number of blocks and the "
        "last one of them. `plan` compares them with the sessions and collects what differs. A position needs no "
        "comparison: `advance` counts it.\n\n"
        "Who sits where: compare tables with `is`. A table lives as long as its session holds blocks, so a session "
        "that was freed and comes back has another one. Hold the tables themselves: the `id` of one that is gone is "
        "given again. Where the tables are others than before, find for each the row that it had, and move all those "
        "rows at once by one indexing, `fields[:, to] = fields[:, source]`, and the same for the block tables. Only "
        "then write the rows of those that join, at once with everything else that has changed.\n\n"
        "Blocks: a table grows at its end. Only its last block can be replaced, by a copy, and its length is then the "
        "same."
    ),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, {"A": 5, "B": 9, "C": 10, "D": 3})
    yield sessions
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("B"))  # the others move up
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("A"))  # and now one joins at once
    sessions |= start(engine, {"E": [53] * 7})
    yield sessions
    yield from steps(engine, sessions, 4)


def truth(hunt: Played, model: Model) -> Truth:
    for moment, _, ours, broken, theirs in side_by_side(hunt, model):
        live = list(theirs.values())
        kv: Any = broken.kv
        step: Any = broken.decode_step
        kv.place([session.table for session in live])
        inputs = step.plan(live)
        found = list(zip(inputs.token_ids.tolist(), inputs.context_lens.tolist(), strict=True))
        says = {name: (session.token_ids[-1], session.num_cached_tokens) for name, session in theirs.items()}
        for row, name in zip(found, ours, strict=True):
            if row != says[name]:
                whose = next(other for other, said in says.items() if said == row)
                return {"session": {name}, "moment": {str(moment)}, "whose": {whose}}
    raise AssertionError("the broken part gives the right rows: it is not broken")


COLLEAGUES_FILE = '''\
import torch

from rosecourse.decode import DecodeInputs
from rosecourse.decode.rows import SamplingMetadata, sampling_fields
from rosecourse.kv.buffers import index_tensor

# Columns of the board; from BLOCKS on they are blocks.
LAST, PLACE, HEAT, FEW, MASS, SEED, BLOCKS = range(7)


class Board:
    """The board lies on the device; `copy` is what the
    host believes to stand on it, a list for each row."""

    def __init__(self, model, kv, config):
        self.kv = kv
        size = config.max_batch_size, BLOCKS + config.max_blocks
        self.board = torch.zeros(size, dtype=torch.int64, device=kv.device)
        self.forget()

    def forget(self):
        self.owners, self.copy = [], []

    def plan(self, sessions):
        news = self.owners, self.copy
        self.owners = [session.table for session in sessions]
        self.copy = [self.line(session) for session in sessions]
        seats = self.seats(news[0])
        known = [[] if seat is None else news[1][seat] for seat in seats]
        self.send(self.differences(known))
        self.move(seats)
        used = self.board[: len(sessions)]
        tables = used[:, BLOCKS:].expand(self.kv.num_layers, -1, -1)
        most = max(line[PLACE] for line in self.copy)
        last, place = used[:, LAST].contiguous(), used[:, PLACE].contiguous()
        return DecodeInputs(last, place, most, tables, sessions)

    def line(self, session):
        return [
            session.token_ids[-1],
            session.num_cached_tokens,
            *sampling_fields(session.params),
            *session.table,
        ]

    def seats(self, owners):
        """For each session the row in which it was, if it was in one."""
        before = {id(owner): row for row, owner in enumerate(owners)}
        return [before.get(id(owner)) for owner in self.owners]

    def differences(self, known):
        """(row, column, number) of all that the board does not say yet."""
        for row, (old, new) in enumerate(zip(known, self.copy, strict=True)):
            old = old + [None] * len(new)
            yield from ((row, column, n) for column, n in enumerate(new) if n != old[column])

    def send(self, differences):
        if found := list(differences):
            rows, columns, numbers = index_tensor(
                list(zip(*found, strict=True)), self.kv.device
            )
            self.board[rows, columns] = numbers

    def move(self, seats):
        moves = [
            (row, seat) for row, seat in enumerate(seats) if seat is not None and seat != row
        ]
        if moves:
            to, origin = index_tensor(moves, self.kv.device).unbind(dim=1)
            self.board[to] = self.board[origin]

    def advance(self):
        self.board[: len(self.copy), PLACE] += 1
        for line in self.copy:
            line[PLACE] += 1

    def asked(self):
        used = self.board[: len(self.copy)]
        heat, mass = used.view(torch.float64)[:, HEAT], used.view(torch.float64)[:, MASS]
        sampled = any(line[HEAT] for line in self.copy)
        return (
            SamplingMetadata(used[:, PLACE], heat, used[:, FEW], mass, used[:, SEED])
            if sampled
            else None
        )

    def holds(self, sessions):
        theirs = [session.table for session in sessions]
        return len(theirs) == len(self.owners) and all(
            a is b for a, b in zip(theirs, self.owners, strict=True)
        )

    def take(self, chosen, token_ids):
        self.board[: len(self.copy), LAST] = chosen
        for line, token_id in zip(self.copy, token_ids, strict=True):
            line[LAST] = token_id
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "Requests come and go, and all is well. But if one request ends and another begins in the same step, then a "
        "third one, which has been there for long and did nothing but stay, goes on with words that are not its own. "
        "If there is a step between the end of the one and the beginning of the other, nothing happens."
    ),
    tools=(
        "`engine.decode_step.plan(list(sessions.values()))` gives the inputs of the next step at any moment: "
        "`token_ids`, `context_lens` and `block_tables[0]`, a row for each session in the order of the batch. It may "
        "be asked as often as you like. The truth is each session's `token_ids[-1]`, `num_cached_tokens` and `table`.",
        "Moment 5 comes after no step: since moment 4 one session has left, and another one has come.",
    ),
    questions={
        "session": "which session is given a row that is another session's",
        "whose": "whose row it is given, the name of a session",
        "moment": "the first moment of the scene, a number, at which the next step's inputs are wrong",
        "line": LINE,
    },
    hints={
        "session": "Put the rows that the plan gives beside what each session says, at every moment.",
        "whose": "Last tokens, lengths and blocks: of which session in the same batch are these?",
        "moment": "Ask for the plan at every moment, moment 0 included, which comes before the first step.",
        "line": "Take the rows of one step in your hand: which are written, which are read, and in which order?",
    },
    source=COLLEAGUES_FILE,
    fault="        self.send(self.differences(known))\n        self.move(seats)\n",
    mended=(
        "        self.move(seats)  # first: the rows are still what they were\n"
        "        self.send(self.differences(known))\n"
    ),
    config=EngineConfig(block_size=8, max_batch_size=6, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The colleague sends what is new, and then moves the rows of those that stay. A newcomer gets the last row, "
        "in which somebody else still is: the one that is about to move up. Its row is overwritten before it has been "
        "read, so the move copies the newcomer's row into the place of the one that stayed. The host believes that "
        "both are right, so that nothing is ever mended. If nobody joins in the step in which rows move, nothing is "
        "sent, and no harm is done; a new block for a row that moves in the same step would be lost as well. Whoever "
        "moves rows reads them all before anybody writes one."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------


def one_joins(oracle: Oracle, n: int) -> list[Tracked]:
    made = of(any_blocks)(oracle, n - 1)
    return [*made, oracle.start(19)]


def one_leaves_at_the_end(oracle: Oracle, n: int) -> list[Tracked]:
    return of(any_blocks)(oracle, n + 1)[:-1]


def some_leave(oracle: Oracle, n: int) -> list[Tracked]:
    made = of(any_blocks)(oracle, n + 3)
    return [t for b, t in enumerate(made) if b not in (0, 2, n)]


def two_change_places(oracle: Oracle, n: int) -> list[Tracked]:
    made = of(any_blocks)(oracle, n)
    return [made[-1], *made[1:-1], made[0]]


def one_is_told_another_word(oracle: Any, n: int) -> list[Tracked]:
    made = of(any_blocks)(oracle, n)
    oracle.say(made[n // 2])
    return made


NUMBER = 16  # bytes that the course's part hands over for one: its address and itself
NOTHING_NEW = tuple(at for at in SIMPLE if "shared" not in at.name and "others" not in at.name)
CHANGES = {  # what changes in a step -> how many numbers these are at most, with the index of a gather
    Situation("inside their blocks, 2 of which are shared", of(any_blocks, forks=2)): 2,
    Situation("whose last blocks are full", of(always(16))): 16,
    Situation("whose last blocks are full", of(always(40)), n=5, layers=3): 5,
    Situation("of whose last blocks half are full", of(half_full)): 8,
    Situation("whose last block is full", of(always(24)), n=1, layers=3): 1,
    Situation("one of which has got another word from a user", one_is_told_another_word): 1,
    Situation("one of which joins", one_joins): 9 + 16,
    Situation("one of which joins", one_joins, n=4): 9 + 4,
    Situation("after one at the end of the batch has left", one_leaves_at_the_end, n=8): 8,
    Situation("after 3 have left", some_leave, n=12): 12,
    Situation("after 3 have left", some_leave, n=6, layers=3): 6,
    Situation("two of which have changed places", two_change_places, n=8): 8,
}
BYTES = "{found} {words} in {situation}; the course's part of lesson {lesson} hands over {right}"


def known_anyway(at: Situation, seen: Seen, right: int) -> str:
    """What a number for each session is likely to be, in a step in which nothing is new."""
    each = (seen.counts.device_bytes - right) / at.n
    known = "one number for each session: the token, which `take` has brought, or the position, which `advance` counts?"
    return known if at in NOTHING_NEW and each in (NUMBER / 2, NUMBER, 3 * NUMBER / 2) else ""


def uploaded(numbers: int) -> Cost:
    """What is handed to the device, where so many numbers have changed: other styles take up to twice as much."""
    words = "byte(s) handed to the device"
    return Cost(words, lambda seen: seen.counts.device_bytes, NUMBER * numbers, BYTES, known_anyway)


ARRAYS = Cost("NumPy array(s) built from Python lists", lambda seen: seen.arrays)
MOVES = replace(LOOP, spare=2)

COURSE = Course(
    number="064",
    world=ROWS_THAT_STAY,
    exercise=EXERCISE,
    bug=BUG,
    ideas=(
        *ideas(NOTHING_NEW, uploaded(0), ARRAYS, replace(INDEX_TENSORS, spare=0)),
        *(idea for at, numbers in CHANGES.items() for idea in ideas((at,), uploaded(numbers))),
        *ideas(CHANGES, replace(INDEX_TENSORS, spare=4)),
        *ideas((at for at in (*NOTHING_NEW, *CHANGES) if at.can_be_halved), MOVES),
    ),
    unseen="a wait of the host for the device, and what is written through NumPy into memory that a GPU has elsewhere",
)
