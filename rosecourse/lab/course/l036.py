"""Lesson 036, the block-table cache: a row is built only when it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.engine_parts import block_tables_of
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.situations import Situation, of
from ..world.worlds import BLOCK_TABLES
from .costs import Cost, Seen, ideas
from .form import LINE, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, fork, side_by_side, start, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyBlockTables",
    difficulty=2,
    minutes=30,
    text=(
        "Build the rows of the block tables only when they change. As it stands, the cell runs and gives the right "
        "tables, but it builds every row at every step. The three comments say what must hold in the end; how you get "
        "there is up to you. `check` tells you at any time whether the tables are right, and what a step still builds "
        "from lists that have not changed."
    ),
    docstring=(
        "Where, for each layer and session, the blocks lie: int32 [L, B, max_blocks].\n\n"
        "Now it builds every row at every step. Make it build a row only when the list that it shows has changed."
    ),
    goals={
        "rows: list[list[int]] = []": (
            "Goal: in a step in which no block list has changed, no tensor and no array is built from a Python list."
        ),
        "ids = table[layer_idx]": (
            "Constraint: the rows above come from this method, which keeps them. (As it stands, nobody calls it.) "
            "What it keeps belongs to this table and ends with it. A `BlockTable` has one attribute for it, "
            "`row_cache`, which is None in a new table."
        ),
        "row = torch.zeros(self.max_blocks, dtype=torch.int32)": (
            "Constraint: the row is right after a new block and after a copy-on-write. Ids before its "
            "last one are not written again."
        ),
    },
    look=(
        "`session.block_ids_per_layer` is a `BlockTable`: a list of lists with one more attribute, `row_cache`. Look "
        "at the table with the column *signature* above. In which steps does the signature change, and what has "
        "happened to the list by then?"
    ),
    do=(
        "Keep for each layer of a table two things: the row, and the signature of the list that it shows. Begin with "
        "a row of zeros and a signature that no list has. At each step compare the list's signature, its length and "
        "its last id, with the one that was kept: a rollover changes both, a copy-on-write changes the last id alone. "
        "While they are equal, the kept row is right. If they differ, bring the row up to date and keep the new "
        "signature with it: only what the two kinds of change can have touched is written. "
        "Through `row.numpy()` a slice of the row takes a list without a tensor being made. Then one "
        "`torch.stack(rows, out=...)` puts the rows of a layer together in the buffer."
    ),
    stubs={
        "get_paged_block_table_row_cpu": """
            ids = table[layer_idx]
            row = torch.zeros(self.max_blocks, dtype=torch.int32)
            row[: len(ids)] = torch.tensor([block_id - offset for block_id in ids], dtype=torch.int32)
            return row
            """,
    },
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start(engine, {"S": [5, 6, 7, 8, 9, 10, 11, 12, 13], "T": [20, 21, 22, 23, 24]})
    yield sessions
    yield from steps(engine, sessions, 1)
    sessions["fork"] = fork(engine, sessions["S"])
    yield from steps(engine, sessions, 9)


def truth(hunt: Played, model: Model) -> Truth:
    for moment, _, _, broken, sessions in side_by_side(hunt, model):
        tables = block_tables_of(broken.decode_step)(list(sessions.values()))[0]
        for row, (name, session) in zip(tables.tolist(), sessions.items(), strict=True):
            ids = session.block_ids_per_layer[0]
            wrong = [shown for shown, block_id in zip(row, ids, strict=False) if shown != block_id]
            if wrong:
                return {"session": {name}, "moment": {str(moment)}, "block": {str(wrong[0])}}
    raise AssertionError("the broken part gives the right tables: it is not broken")


COLLEAGUES_FILE = '''\
import torch

from rosecourse.kv.buffers import StagingBuffer


class KeptRow:
    """A session's row of one layer, with what it knows of the list of blocks that it shows."""

    def __init__(self, width):
        self.entries = torch.zeros(width, dtype=torch.int32)
        self.count, self.newest = 0, None

    def follow(self, ids, first_id):
        """Bring the row up to date; first_id: the id of the layer's block 0."""
        newest = ids[-1] if ids else None
        if self.count == len(ids) and self.newest == newest:
            return
        entries = self.entries.numpy()
        if self.count == len(ids):  # a copy has taken the place of the last block
            entries[-1] = newest - first_id
        for place in range(self.count, len(ids)):  # blocks have come
            entries[place] = ids[place] - first_id
        self.count, self.newest = len(ids), newest


class Tables:
    """Block tables, int32 [L, B, max_blocks], of rows
    that live as long as the tables that they show."""

    def __init__(self, model, kv, config):
        self.kv, self.width = kv, config.max_blocks
        self.staging = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.width, torch.int32, kv.device
        )

    def __call__(self, sessions):
        layers = self.staging.host(self.kv.num_layers, len(sessions), self.width)
        columns = [self.rows_of(session.block_ids_per_layer) for session in sessions]
        for layer, rows in zip(layers, zip(*columns, strict=True), strict=True):
            torch.stack(rows, out=layer)
        return self.staging.to_device()

    def rows_of(self, table):
        """A session's row of each layer."""
        if table.row_cache is None:
            table.row_cache = [KeptRow(self.width) for _ in table]
        for layer, ids in enumerate(table):
            table.row_cache[layer].follow(ids, layer * self.kv.num_blocks)
        return [row.entries for row in table.row_cache]
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "A request is forked in the middle of a block. Some tokens later one of the two goes on as if it had read the "
        "other's words, and it never recovers. Requests that are not forked are right, and so is a fork that begins "
        "at the end of a block. No key is ever written to the wrong place."
    ),
    tools=(
        "`engine.decode_step.block_tables(list(sessions.values()))[0]` gives the rows of layer 0 at any moment, one "
        "for each session in the order of the batch. The truth is each session's `block_ids_per_layer[0]`.",
    ),
    questions={
        "session": "which of `S`, `T` and `fork` is given a row that shows a wrong block",
        "moment": "the first moment of the scene, a number, at which the part gives a wrong row",
        "block": "the block, a number, that this row of layer 0 shows and should not",
        "line": LINE,
    },
    hints={
        "session": "Put the row of layer 0 that the part gives for each session beside its `block_ids_per_layer[0]`.",
        "moment": "Ask the part for its rows at every moment of the scene; moment 0 comes before the first step.",
        "block": "We are not looking for the block that the session holds, but for the one that its row shows instead.",
        "line": "The part notices that the list has changed. Which entry of the row does it write then?",
    },
    source=COLLEAGUES_FILE,
    fault="            entries[-1] = newest - first_id\n",
    mended="            entries[len(ids) - 1] = newest - first_id\n",
    config=EngineConfig(block_size=8, max_batch_size=4, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "The change is noticed: a copy-on-write replaces the last id, and the row knows the last id that it has seen. "
        "But the row is longer than the list: it has an entry for every block that a request may ever hold. `[-1]` is "
        "the last entry of the row, not the entry of the last block. So the new block is written where nobody reads, "
        "and the row goes on showing the block that now belongs to the other request. It remembers the new id as if "
        "it had been entered, so it is never mended. To notice a change is one half; the other half is to write it "
        "where it happened."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------


def signatures_never_equal(at: Situation, seen: Seen, right: int) -> str:
    never = at is UNCHANGED and seen.kept and seen.written_anew == seen.ids
    return "rows are kept, but no kept signature was ever equal: is what is stored what is compared?" if never else ""


def six_blocks(n: int) -> list[int]:
    return [42 + i % 6 for i in range(n)]


def some_have_grown(oracle: Oracle, n: int) -> list[Tracked]:
    """One in four has got a new block since the step before; they come last."""
    grown = [oracle.start(40) for _ in range(n // 4)]
    made = [oracle.start(41 + i % 6) for i in range(n - len(grown))]
    oracle.step(*made, *grown)
    return made + grown


def in_another_order(oracle: Oracle, n: int) -> list[Tracked]:
    return of(six_blocks)(oracle, n)[::-1]


def some_of_them(oracle: Oracle, n: int) -> list[Tracked]:
    return of(six_blocks)(oracle, 2 * n)[1::2]


def all_have_grown(oracle: Oracle, n: int) -> list[Tracked]:
    made = [oracle.start(40) for _ in range(n)]
    oracle.step(*made)
    return made


def half_have_copied(oracle: Oracle, n: int) -> list[Tracked]:
    """Of each two that shared all blocks, one has got a copy of the last."""
    parents = [oracle.start(43 + i % 4) for i in range(n // 2)]
    made = parents + [oracle.fork(parent) for parent in parents]
    oracle.step(*made)
    return made


UNCHANGED = Situation("whose block lists have not changed", of(six_blocks))
SOME_GROWN = Situation("of which 4 have got one more block", some_have_grown)
REORDERED = Situation("whose block lists have not changed, in another order than before", in_another_order)
FEWER = Situation("whose block lists have not changed, and half of those of the step before", some_of_them, n=7)
UNCHANGED_ONE = replace(UNCHANGED, name="whose block list has not changed", n=1)
GROWN = Situation("whose block lists have each got one more block", all_have_grown)
COPIED = Situation("that have shared their last blocks, which half of them have left for copies", half_have_copied)
NOTHING_NEW = (UNCHANGED, REORDERED, FEWER, UNCHANGED_ONE)
TABLES = (UNCHANGED, SOME_GROWN, REORDERED, FEWER, UNCHANGED_ONE, GROWN, COPIED)

TENSORS = Cost("tensor(s) built from Python lists", lambda seen: seen.list_tensors, spare=2)
ARRAYS = Cost("NumPy array(s) built from Python lists", lambda seen: seen.arrays, spare=2)
OLD_IDS = Cost(
    "block id(s), last ones of lists not counted, put into rows that had shown (it/them) before",
    lambda seen: seen.written_anew,
    hint=signatures_never_equal,
)

COURSE = Course(
    number="036",
    world=BLOCK_TABLES,
    exercise=EXERCISE,
    bug=BUG,
    ideas=(*ideas(NOTHING_NEW, TENSORS, ARRAYS), *ideas(TABLES, OLD_IDS)),
)
