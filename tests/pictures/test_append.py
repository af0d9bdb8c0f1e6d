"""The picture of an append: each row, the slot that it goes to, and what the blocks held before."""

import pytest

from rosecourse import BlockError
from rosecourse.pictures.slots import rows_to_blocks
from tests.support.diagram_reader import (
    arrows,
    make_engine,
    parse,
    rows_of,
    start,
    strips,
    tables,
)


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


def draw(engine, sessions, rows):
    last = [engine.kv.info(session.block_ids_per_layer[0][-1]) for session in sessions]
    named = {"ABCDEFGH"[row]: session.block_ids_per_layer for row, session in enumerate(sessions)}
    blocks, slots = [last[row].block_index for row in rows], [last[row].length for row in rows]
    return rows_to_blocks(engine.kv, named, rows, blocks, slots)


def targets(picture):
    """{block: (slot, the row's number in it)} of the slots with an outline"""
    return {
        block: (slot, cell.text)
        for block, (_, slots, _) in strips(picture).items()
        for slot, cell in enumerate(slots)
        if cell.marked
    }


def test_each_row_that_is_given_points_at_its_block(engine):
    sessions = [start(engine, n) for n in (1, 4, 6, 2)]  # B's block is full: the batch is not whole
    picture = draw(engine, sessions, [0, 2, 3])
    assert [row[0].text for row in rows_of(picture)[1:5]] == ["[0] A", "[1] B: not in this write", "[2] C", "[3] D"]
    assert targets(picture) == {0: (1, "0"), 3: (2, "2"), 4: (2, "3")}
    line_of = {block: line for block, (line, _, _) in strips(picture).items()}
    assert arrows(picture) == [(1, line_of[0]), (3, line_of[3]), (4, line_of[4])]
    title = parse(picture)[0].text
    assert title.startswith("3 of 4 rows of key_new are written in layer 0: row 0 (A) to slot 1 of block #0;")


def test_what_cannot_be_drawn(engine):
    a = start(engine, 2)
    named = tables(A=a)
    with pytest.raises(ValueError, match="zip"):
        rows_to_blocks(engine.kv, named, [0], [0], [2, 3])
    engine.free(a)
    with pytest.raises(BlockError, match="session 'A' holds no blocks"):
        rows_to_blocks(engine.kv, named, [0], [0], [2])
