"""Lesson 064, rows that stay: a running session keeps its row on the device, and a step uploads what has changed."""

from dataclasses import replace
from typing import Any

from ...engine.engine import InferenceEngine
from ..checking.costs import FULL, INSIDE, INSIDE_FORKED, Bound, N, Step, growth
from ..checking.models.rows import RowsThatStay
from .form import LINE, Course, small
from .scenes import Moments, Played, Truth, side_by_side, start, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 5, "B": 9, "C": 10, "D": 3})
    yield sessions
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("B"))  # the others move up
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("A"))  # and now one joins at once
    sessions |= start(engine, {"E": [53] * 7})
    yield sessions
    yield from steps(engine, sessions, 4)


def truth(hunt: Played) -> Truth:
    for moment, _, ours, broken, theirs in side_by_side(hunt):
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


JOINED = Step(f"{N} sessions, after one has joined", INSIDE.lengths, joins=1)
LEFT = Step(f"{N - 3} sessions, after three have left", INSIDE.lengths, leave=3)
TURNED = replace(INSIDE, words=f"{N} sessions in another order", order=-1)
CHANGES = {JOINED: 9 + N, LEFT: N - 3, TURNED: N, FULL: N, INSIDE_FORKED: 3}  # at most so many numbers change
NUMBER = 16  # bytes that the course's part uploads for one: its address and itself

COURSE = Course(
    world=RowsThatStay,
    symptom=(
        "Requests come and go, and all is well. But if one request ends and another begins in the same step, a third, "
        "which was there before and stays, continues with words that are not its own."
    ),
    tools=(
        "`engine.decode_step.plan(list(sessions.values()))` gives the next step's `token_ids`, `context_lens` and "
        "`block_tables[0]`. The truth is `token_ids[-1]`, `num_cached_tokens` and `table` of each session.",
    ),
    questions={
        "session": "which session gets a row that is another session's",
        "whose": "the session whose row it is",
        "moment": "the first moment at which the next step's inputs are wrong",
        "line": LINE,
    },
    hints={
        "session": "Put the rows of the plan beside what each session says, at every moment.",
        "whose": "Last tokens, lengths and blocks: of which session in the same batch are these?",
        "moment": (
            "Ask for the plan at every moment. Between moments 4 and 5 there is no step: one session leaves, and "
            "another comes."
        ),
        "line": "Take the rows of one step in your hand: which are written, which are read, and in which order?",
    },
    source='''\
from rosecourse.decode.rows import sampling_fields
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l064 import Rows


class Board(Rows):
    """The rows of lesson 064; the colleague has written who moves where."""

    def _assign_rows(self, sessions, tables, changes):
        row_of = {id(table): row for row, table in enumerate(self.tables)}
        origins = [row_of.get(id(table)) for table in tables]
        newcomers = {row: sessions[row] for row, seat in enumerate(origins) if seat is None}
        self.seat(newcomers)
        self.move(origins)
        self.remember(sessions, origins, newcomers)

    def seat(self, newcomers):
        """Upload token, position and sampling of the sessions that join, a row each."""
        rows = [
            (row, one.token_ids[-1], one.num_cached_tokens, *sampling_fields(one.params))
            for row, one in newcomers.items()
        ]
        if rows:
            row, *fields = index_tensor(rows, self.kv.device).unbind(dim=1)
            for field, numbers in zip(self.fields, fields, strict=True):
                field[row] = numbers

    def move(self, origins):
        moves = [(row, seat) for row, seat in enumerate(origins) if seat not in (None, row)]
        if moves:
            row, seat = index_tensor(moves, self.kv.device).unbind(dim=1)
            self.fields[:, row] = self.fields[:, seat]
            self.block_tables[row] = self.block_tables[seat]

    def remember(self, sessions, origins, newcomers):
        self.tokens = [
            newcomers[row].token_ids[-1] if seat is None else self.tokens[seat]
            for row, seat in enumerate(origins)
        ]
        self.ends = [-1 if seat is None else self.ends[seat] for seat in origins]
        self.num_blocks = [0 if seat is None else self.num_blocks[seat] for seat in origins]
        self.sampling = any(session.params.temperature > 0 for session in sessions)
        self._look()
''',
    fault="        self.seat(newcomers)\n        self.move(origins)\n",
    mended="        self.move(origins)  # first: the rows are still what they were\n        self.seat(newcomers)\n",
    config=small(8, 6),
    scene=scene,
    truth=truth,
    idea=(
        Bound("bytes uploaded", (INSIDE,), "uploaded"),
        *(Bound("bytes uploaded", (step,), "uploaded", NUMBER * numbers) for step, numbers in CHANGES.items()),
        Bound("tensors of integers", (INSIDE, *CHANGES), "built", spare=4),
        Bound("operations beyond those of half the sessions", (INSIDE, *CHANGES), growth, spare=2),
    ),
    unseen="a wait of the host for the device, and what is written through NumPy into memory that a GPU has elsewhere",
)
