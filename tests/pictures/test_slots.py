"""The picture of a block table and a position: which entry is read, and which slot that is."""

import pytest

from rosecourse import BlockError, ConfigError, EngineConfig, InferenceEngine, lesson
from rosecourse.pictures.slots import slots_by_table
from tests.support.diagram_reader import SVG, boxes, parse, start, texts


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


def make_engine(model, block_size=4):
    config = EngineConfig(block_size=block_size, max_batch_size=16, num_blocks=12, max_seq_len=64, prefix_cache=False)
    return InferenceEngine(model, config, lesson("063").after)


def started(engine, *lengths):
    sessions = [start(engine, length) for length in lengths]
    return {name: session.table for name, session in zip("ABCDEFGH", sessions, strict=False)}


def groups(picture, kind):
    return [group for group in parse(picture).iter(f"{SVG}g") if group.get("class") == kind]


def targets(picture):
    """{row: (block, slot)}"""
    return {
        int(rect.get("data-row")): (int(strip.get("data-block")), int(rect.get("data-slot")))
        for strip in groups(picture, "strip")
        for rect in strip.iter(f"{SVG}rect")
        if rect.get("class") == "target"
    }


def chosen(picture):
    """{row: the entry with an outline}"""
    return {
        int(row.get("data-row")): int(rect.get("data-entry"))
        for row in groups(picture, "row")
        for rect in row.iter(f"{SVG}rect")
        if rect.get("class") == "chosen"
    }


def tips(picture):
    """{row: the height at which its arrow ends}"""
    found = {}
    for row in groups(picture, "row"):
        head = [path for path in row.iter(f"{SVG}path") if path.get("fill") not in (None, "none")][-1]
        found[int(row.get("data-row"))] = float(head.get("d")[1:].split("L")[0].split()[1])
    return found


def test_each_position_chooses_an_entry_and_a_slot(engine):
    tables = started(engine, 6, 4, 9, 2)
    engine.kv.place(list(tables.values()))
    picture = slots_by_table(engine.kv, tables)
    assert chosen(picture) == {0: 1, 1: 1, 2: 2, 3: 0}
    lengths = (6, 4, 9, 2)
    expected = {
        row: (table[n // 4], n % 4) for row, (table, n) in enumerate(zip(tables.values(), lengths, strict=True))
    }
    assert targets(picture) == expected
    assert {group.get("data-placed") for group in groups(picture, "row")} == {"1"}
    assert "no block placed: 0 is read" not in texts(picture)
    assert parse(picture)[0].text.startswith("A at position 6 reads entry 1: slot 2 of block 1; B at position 4")


def test_an_arrow_ends_at_its_block(engine):
    tables = started(engine, 6, 4, 9, 2)
    engine.kv.place(list(tables.values()))
    picture = slots_by_table(engine.kv, tables)
    heights = {}
    for strip in groups(picture, "strip"):
        rects = list(strip.iter(f"{SVG}rect"))
        heights[int(strip.get("data-block"))] = float(rects[0].get("y")), float(rects[0].get("y")) + 24
    for row, height in tips(picture).items():
        top, bottom = heights[targets(picture)[row][0]]
        assert top < height < bottom


def test_before_place_a_full_session_aims_at_block_0(engine):
    tables = started(engine, 6, 4)
    picture = slots_by_table(engine.kv, tables)
    assert targets(picture) == {0: (tables["A"][1], 2), 1: (0, 0)}
    assert tables["A"][0] == 0  # somebody else's
    assert [group.get("data-placed") for group in groups(picture, "row")] == ["1", "0"]
    assert "no block placed: 0 is read" in texts(picture)
    assert "past the end of its table" in parse(picture)[0].text


def test_filled_slots_are_those_with_tokens(engine):
    tables = started(engine, 6, 4)
    filled = {
        int(g.get("data-block")): int(g.get("data-filled")) for g in groups(slots_by_table(engine.kv, tables), "strip")
    }
    assert filled == {tables["A"][0]: 4, tables["A"][1]: 2, tables["B"][0]: 4}


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
    assert set(targets(picture).values()) == {(first.table[-1], 2)}


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


def test_what_cannot_be_drawn_is_refused(engine, small_model):
    tables = started(engine, 6)
    with pytest.raises(ConfigError, match="tables is empty"):
        slots_by_table(engine.kv, {})
    with pytest.raises(BlockError, match="'A' is not one of this cache"):
        slots_by_table(make_engine(small_model).kv, tables)
    engine.kv.free(tables["A"])
    with pytest.raises(BlockError, match="give a live session's table"):
        slots_by_table(engine.kv, tables)
    large = make_engine(small_model, block_size=32)
    with pytest.raises(ConfigError, match="at most 16 can be drawn"):
        slots_by_table(large.kv, started(large, 6))
