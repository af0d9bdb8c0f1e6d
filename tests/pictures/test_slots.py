"""Pictures of slots: where rows of a write go, and which entry of a table is read."""

import pytest

from rosecourse import lesson
from rosecourse.pictures.colours import INK, WRONG
from rosecourse.pictures.slots import rows_to_blocks, slots_by_table
from tests.support.diagram_reader import arrows, make_engine, parse, rows_of, start, strips, targets, texts


@pytest.fixture
def engine(small_model):
    """One table for all layers, as from 063 on."""
    return make_engine(small_model, lesson("063").after)


def started(engine, *lengths):
    sessions = [start(engine, length) for length in lengths]
    return {name: session.table for name, session in zip("ABCDEFGH", sessions, strict=False)}


# -- an append ------------------------------------------------------------------------------------------------------


def test_row_of_a_write_points_at_its_block(small_model):
    engine = make_engine(small_model)
    sessions = [start(engine, n) for n in (1, 4, 6, 2)]  # B's block is full: the batch is not whole
    last = [engine.kv.info(session.block_ids_per_layer[0][-1]) for session in sessions]
    named = dict(zip("ABCD", (session.block_ids_per_layer for session in sessions), strict=True))
    blocks, slots = ([getattr(last[row], what) for row in (0, 2, 3)] for what in ("block_index", "length"))
    picture = rows_to_blocks(engine.kv, named, [0, 2, 3], blocks, slots)
    assert [row[0].text for row in rows_of(picture)[1:5]] == ["[0] A", "[1] B: not in this write", "[2] C", "[3] D"]
    assert {place: text for place, (text, _) in targets(picture).items()} == {(0, 1): "0", (3, 2): "2", (4, 2): "3"}
    assert arrows(picture) == [(row, strips(picture)[block][0]) for row, block in ((1, 0), (3, 3), (4, 4))]
    assert "row 0 (A) to slot 1 of block #0;" in parse(picture)[0].text


# -- block tables and positions -------------------------------------------------------------------------------------


def test_position_chooses_an_entry_and_a_slot(engine):
    tables, lengths = started(engine, 6, 4, 9, 2), (6, 4, 9, 2)
    engine.kv.place(list(tables.values()))
    picture = slots_by_table(engine.kv, tables)
    expected = {name: (table[n // 4], n % 4) for (name, table), n in zip(tables.items(), lengths, strict=True)}
    assert targets(picture) == {place: (name, INK) for name, place in expected.items()}
    rows = rows_of(picture)
    last = max(column for column, cell in rows[0].items() if cell.text.startswith("["))
    chosen = [
        [(column, cell.text) for column, cell in row.items() if cell.marked and 1 <= column <= last] for row in rows
    ]
    assert chosen[1:5] == [[(1 + n // 4, str(block))] for (block, _), n in zip(expected.values(), lengths, strict=True)]
    assert arrows(picture) == [(row, strips(picture)[block][0]) for row, (block, _) in enumerate(expected.values(), 1)]
    assert "no block placed: 0 is read" not in texts(picture)
    assert parse(picture)[0].text.startswith("A at position 6 reads entry 1: slot 2 of block 1; B at position 4")


def test_position_before_place_aims_at_block_0(engine):
    tables = started(engine, 6, 4)
    picture = slots_by_table(engine.kv, tables)
    assert targets(picture) == {(tables["A"][1], 2): ("A", INK), (0, 0): ("B", WRONG)}
    assert tables["A"][0] == 0  # somebody else's
    assert "no block placed: 0 is read" in texts(picture)
