"""Lesson 036, the block-table cache: a row is built only when it changes."""

from dataclasses import replace
from typing import Any

from ...engine.engine import InferenceEngine
from ..checking.costs import Bound, N, Step, longer
from ..checking.models.tables import BlockTables
from .form import LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Truth, fork, side_by_side, start, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start(engine, {"S": [5, 6, 7, 8, 9, 10, 11, 12, 13], "T": [20, 21, 22, 23, 24]})
    yield sessions
    yield from steps(engine, sessions, 1)
    sessions["fork"] = fork(engine, sessions["S"])
    yield from steps(engine, sessions, 9)


def truth(hunt: Played) -> Truth:
    for moment, _, _, broken, sessions in side_by_side(hunt):
        step: Any = broken.decode_step
        tables = step.block_tables(list(sessions.values()))[0]
        for row, (name, session) in zip(tables.tolist(), sessions.items(), strict=True):
            ids = session.block_ids_per_layer[0]
            wrong = [shown for shown, block_id in zip(row, ids, strict=False) if shown != block_id]
            if wrong:
                return {"session": {name}, "moment": {str(moment)}, "block": {str(wrong[0])}}
    raise AssertionError("the broken part gives the right tables: it is not broken")


LONG = tuple(106 + i % 5 for i in range(N))
UNCHANGED = Step(f"{N} sessions whose lists have not changed", LONG)
OTHERWISE = (
    replace(UNCHANGED, words=f"{UNCHANGED.words}, in another order", order=-1),
    replace(UNCHANGED, words="half of the sessions, whose lists have not changed", order=2),
)

COURSE = Course(
    world=BlockTables,
    symptom=(
        "A request is forked in the middle of a block. Some tokens later one of the two continues as if it had read "
        "the other's words, and it never recovers. Requests without a fork are right, and so is a fork at the end of "
        "a block."
    ),
    tools=(
        "`engine.decode_step.block_tables(list(sessions.values()))[0]` gives the rows of layer 0. The truth is "
        "`session.block_ids_per_layer[0]`.",
    ),
    questions={
        "session": "which of `S`, `T` and `fork` gets a wrong row",
        "moment": "the first moment at which its row is wrong",
        "block": "the block that this row of layer 0 shows and should not",
        "line": LINE,
    },
    hints={
        "session": "Put the row of layer 0 that the part gives for each session beside its `block_ids_per_layer[0]`.",
        "moment": f"Ask the part for its rows at every moment. {MOMENTS}",
        "block": "We are not looking for the block that the session holds, but for the one that its row shows instead.",
        "line": "The part notices that the list has changed. Which entry of the row does it write then?",
    },
    source='''\
import torch

from rosecourse.kv.buffers import StagingBuffer


class KeptRow:
    """A session's row of one layer."""

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
    """Block tables, int32 [L, B, max_blocks]."""

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
        if table.row_cache is None:
            table.row_cache = [KeptRow(self.width) for _ in table]
        for layer, ids in enumerate(table):
            table.row_cache[layer].follow(ids, layer * self.kv.num_blocks)
        return [row.entries for row in table.row_cache]
''',
    fault="            entries[-1] = newest - first_id\n",
    mended="            entries[len(ids) - 1] = newest - first_id\n",
    config=small(8, 4),
    scene=scene,
    truth=truth,
    idea=(
        Bound("tensors or arrays built of Python numbers", (UNCHANGED, *OTHERWISE), "built", spare=4),
        Bound("further Python instructions for lists that are 8 blocks longer", (UNCHANGED,), longer, spare=300),
    ),
)
