"""The picture of a block table and a position: which entry is read, and which slot that is."""

import pytest

from rosecourse import EngineConfig, InferenceEngine, lesson
from rosecourse.pictures.colours import INK, OWNER_COLOURS, WRONG
from rosecourse.pictures.slots import slots_by_table
from tests.support.diagram_reader import arrows, boxes, parse, rows_of, start, strips, texts


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


def test_filled_slots_are_those_with_tokens(engine):
    tables = started(engine, 6, 4)
    engine.kv.place(list(tables.values()))
    filled = {
        block: sum(cell.fill in OWNER_COLOURS for cell in slots)
        for block, (_, slots, _) in strips(slots_by_table(engine.kv, tables)).items()
    }
    assert filled == {tables["A"][0]: 4, tables["A"][1]: 2, tables["B"][0]: 4, tables["B"][1]: 0}


def test_a_shared_block_names_its_owners(engine):
    first = start(engine, 6)
    fork = engine.fork(first)
    picture = slots_by_table(engine.kv, {"A": first.table, "F": fork.table})
    assert texts(picture).count("A, F") == 2


def test_writers_of_one_slot_are_counted(engine):
    first = start(engine, 6)
    family = {"A": first.table, **{name: engine.fork(first).table for name in "FGH"}}
    picture = slots_by_table(engine.kv, family)
    assert texts(picture).count("×4") == 1
    assert targets(picture) == {(first.table[-1], 2): ("×4", INK)}


def test_nothing_is_drawn_over_a_text_or_outside(engine):
    picture = slots_by_table(engine.kv, started(engine, 6, 4, 9, 2, 12, 1))
    for what, left, top, right, bottom in boxes(parse(picture)):
        assert min(left, top) >= 0, what
        assert max(right - picture.width, bottom - picture.height) <= 0, what
    found = [box for box in boxes(parse(picture)) if box[0] != "rect"]
    for n, (what, left, top, right, bottom) in enumerate(found):
        for other, l2, t2, r2, b2 in found[n + 1 :]:
            assert right <= l2 or r2 <= left or bottom <= t2 or b2 <= top, (what, other)


def test_the_same_state_gives_the_same_picture(small_model):
    one, other = (make_engine(small_model) for _ in range(2))
    assert slots_by_table(one.kv, started(one, 6, 4)).svg == slots_by_table(other.kv, started(other, 6, 4)).svg
