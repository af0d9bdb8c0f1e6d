"""The picture of a block table and a position: which entry is read, and which slot that is."""

import pytest

from rosecourse import EngineConfig, InferenceEngine, lesson
from rosecourse.pictures.colours import INK, WRONG
from rosecourse.pictures.slots import slots_by_table
from tests.support.diagram_reader import arrows, parse, rows_of, start, strips, texts


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


def make_engine(model, block_size=4):
    config = EngineConfig(block_size=block_size, max_batch_size=16, num_blocks=12, max_seq_len=64, prefix_cache=False)
    return InferenceEngine(model, config, lesson("063").after)


def started(engine, *lengths):
    sessions = [start(engine, length) for length in lengths]
    return {name: session.table for name, session in zip("ABCDEFGH", sessions, strict=False)}


def targets(picture):
    """{(block, slot): (who writes it, the colour of its outline)}"""
    return {
        (block, slot): (cell.text, cell.outline)
        for block, (_, slots, _) in strips(picture).items()
        for slot, cell in enumerate(slots)
        if cell.marked
    }


def chosen(picture, sessions):
    """For each session the entry with an outline, and what it says."""
    rows = rows_of(picture)[1 : 1 + sessions]
    last = max(column for column, cell in rows_of(picture)[0].items() if cell.text.startswith("["))
    return [
        [(column - 1, cell.text) for column, cell in row.items() if cell.marked and 1 <= column <= last] for row in rows
    ]


def test_each_position_chooses_an_entry_and_a_slot(engine):
    tables, lengths = started(engine, 6, 4, 9, 2), (6, 4, 9, 2)
    engine.kv.place(list(tables.values()))
    picture = slots_by_table(engine.kv, tables)
    expected = {name: (table[n // 4], n % 4) for (name, table), n in zip(tables.items(), lengths, strict=True)}
    assert targets(picture) == {place: (name, INK) for name, place in expected.items()}
    named = [[(n // 4, str(expected[name][0]))] for name, n in zip(expected, lengths, strict=True)]
    assert chosen(picture, 4) == named
    assert arrows(picture) == [
        (row, strips(picture)[block][0]) for row, (block, _) in enumerate(expected.values(), start=1)
    ]
    assert "no block placed: 0 is read" not in texts(picture)
    assert {"A: 6", "B: 4", "C: 9", "D: 2"} <= set(texts(picture))
    assert parse(picture)[0].text.startswith("A at position 6 reads entry 1: slot 2 of block 1; B at position 4")


def test_before_place_a_full_session_aims_at_block_0(engine):
    tables = started(engine, 6, 4)
    picture = slots_by_table(engine.kv, tables)
    assert targets(picture) == {(tables["A"][1], 2): ("A", INK), (0, 0): ("B", WRONG)}
    assert tables["A"][0] == 0  # somebody else's
    assert "no block placed: 0 is read" in texts(picture)
    assert "B at position 4 reads entry 1: slot 0 of block 0" in parse(picture)[0].text
