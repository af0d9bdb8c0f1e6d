"""The picture of an append: each row, the slot that it goes to, and what the blocks held before."""

import pytest

from rosecourse import BlockError, ConfigError
from rosecourse.pictures.append import rows_to_blocks
from rosecourse.pictures.blocks import moments
from rosecourse.pictures.sheet import WIDTH
from tests.support.diagram_reader import SVG, boxes, make_engine, parse, start, step, tables, texts


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


def draw(engine, sessions, rows, layer=0):
    last = [engine.kv.info(session.block_ids_per_layer[layer][-1]) for session in sessions]
    named = {"ABCDEFGH"[row]: session.block_ids_per_layer for row, session in enumerate(sessions)}
    blocks, slots = [last[row].block_index for row in rows], [last[row].length for row in rows]
    return rows_to_blocks(engine.kv, named, rows, blocks, slots, layer)


def groups(picture, kind):
    return [group for group in parse(picture).iter(f"{SVG}g") if group.get("class") == kind]


def arrows(picture):
    """{row: (where its arrow starts, the tip of its head)}"""
    found = {}
    for group in groups(picture, "row"):
        paths = [path.get("d") for path in group.iter(f"{SVG}path")]
        if paths:
            points = [[float(n) for n in d[1:].rstrip("z").split("L")[0].split()] for d in paths]
            found[int(group.get("data-row"))] = tuple(points)
    return found


def targets(picture):
    """{block: (slot, its box as (left, top, right, bottom), the row's number in it)}"""
    found = {}
    for group in groups(picture, "strip"):
        for rect in group.iter(f"{SVG}rect"):
            if rect.get("class") == "target":
                x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
                inside = [t.text for t in group.iter(f"{SVG}text") if x < float(t.get("x")) < x + width]
                box = (x, y, x + width, y + height)
                found[int(group.get("data-block"))] = (int(rect.get("data-slot")), box, inside)
    return found


def test_each_row_that_is_given_points_at_its_block(engine):
    sessions = [start(engine, n) for n in (1, 4, 6, 2)]  # B's block is full: the batch is not whole
    picture = draw(engine, sessions, [0, 2, 3])
    written = {int(g.get("data-row")): g.get("data-written") for g in groups(picture, "row")}
    assert written == {0: "1", 1: "0", 2: "1", 3: "1"}
    expected = {0: (1, ["0"]), 3: (2, ["2"]), 4: (2, ["3"])}
    assert {block: (slot, inside) for block, (slot, _, inside) in targets(picture).items()} == expected
    found = arrows(picture)
    assert set(found) == {0, 2, 3}
    for row, block in ((0, 0), (2, 3), (3, 4)):
        (_, (left, top, _, bottom), _), (_, tip) = targets(picture)[block], found[row]
        assert top < tip[1] < bottom
        assert tip[0] < left
    assert "[1]  B: not here" in texts(picture)
    title = parse(picture)[0].text
    assert title.startswith("3 of 4 rows of key_new are written in layer 0: row 0 (A) to slot 1 of block #0;")


def test_the_target_lies_in_its_slot_of_its_block(engine):
    picture = draw(engine, [start(engine, n) for n in (2, 6, 10)], [0, 1, 2])
    for group in groups(picture, "strip"):
        rects = list(group.iter(f"{SVG}rect"))
        slots = [rect for rect in rects if rect.get("class") == "slot"]
        assert len(slots) == 4
        for target in (rect for rect in rects if rect.get("class") == "target"):
            slot = slots[int(target.get("data-slot"))]
            left, right = float(slot.get("x")), float(slot.get("x")) + float(slot.get("width"))
            assert left < float(target.get("x")) < float(target.get("x")) + float(target.get("width")) < right
    assert {slot for slot, _, _ in targets(picture).values()} == {2}  # one column: the position is constant


def test_slots_that_hold_a_token_are_filled(engine):
    sessions = [start(engine, n) for n in (3, 6)]
    for _ in range(4):
        rows = [row for row, s in enumerate(sessions) if engine.kv.info(s.block_ids_per_layer[0][-1]).length < 4]
        for group in groups(draw(engine, sessions, rows), "strip"):
            slots = [rect.get("fill") for rect in group.iter(f"{SVG}rect") if rect.get("class") == "slot"]
            length = engine.kv.info(int(group.get("data-block"))).length
            assert len(set(slots[:length])) == 1
            assert len(set(slots[length:])) <= 1
            assert not set(slots[:length]) & set(slots[length:])
        step(engine, *sessions)


def test_another_layer_and_other_owners(engine):
    a = start(engine, 6)
    fork = engine.fork(a)
    picture = draw(engine, [a], [0], layer=2)
    assert len(groups(picture, "strip")) == 2
    assert texts(picture).count("A, 1 other") == 2  # the fork has no row here
    assert "1 of 1 row of key_new, layer 2" in texts(picture)
    engine.free(fork)


def test_owners_are_named_in_full(engine):
    a = start(engine, 6)
    fork = engine.fork(a)
    named = {"session": a.block_ids_per_layer, "its fork": fork.block_ids_per_layer}
    picture = rows_to_blocks(engine.kv, named, [], [], [])
    assert texts(picture).count("session, its fork") == 2
    assert all(right <= picture.width for _, _, _, right, _ in boxes(parse(picture)))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_everything_lies_inside_the_picture_and_texts_off_each_other(small_model, block_size):
    engine = make_engine(small_model, block_size, 40)
    sessions = [start(engine, n) for n in (2, 7, 3, 18)]
    last = [engine.kv.info(session.block_ids_per_layer[0][-1]) for session in sessions]
    rows = [row for row, info in enumerate(last) if info.length < block_size]
    picture = draw(engine, sessions, rows)
    drawn = list(boxes(parse(picture)))
    for what, left, top, right, bottom in drawn:
        assert 0 <= left < right <= picture.width <= WIDTH, what
        assert 0 <= top < bottom <= picture.height, what
    said = [box for box in drawn if box[0] != "rect"]
    for number, (one, l0, t0, r0, b0) in enumerate(said):
        for two, l1, t1, r1, b1 in said[number + 1 :]:
            assert r0 <= l1 or r1 <= l0 or b0 <= t1 + 4 or b1 <= t0 + 4, (one, two)
    assert all(int(text.get("font-size")) >= 12 for text in parse(picture).iter(f"{SVG}text"))


def test_two_of_them_stand_side_by_side(engine):
    picture = draw(engine, [start(engine, n) for n in (2, 2)], [0, 1])
    both = moments(("one", picture), ("two", picture))
    assert 2 * picture.width < both.width <= WIDTH


def test_what_cannot_be_drawn(engine, small_model):
    a, b = start(engine, 2), start(engine, 3)
    named = tables(A=a, B=b)
    with pytest.raises(ConfigError, match="have 2, 1 and 2 numbers: give as many of each"):
        rows_to_blocks(engine.kv, named, [0, 1], [0], [2, 3])
    with pytest.raises(ConfigError, match="batch_idx has row 2: tables has 2 rows"):
        rows_to_blocks(engine.kv, named, [2], [0], [2])
    with pytest.raises(ConfigError, match="block_idx has block 7, which none of the tables shows"):
        rows_to_blocks(engine.kv, named, [0], [7], [2])
    with pytest.raises(ConfigError, match="positions has slot 4: a block has slots 0 to 3"):
        rows_to_blocks(engine.kv, named, [0], [0], [4])
    for twice in (([0, 0], [0, 1]), ([0, 1], [0, 0])):
        with pytest.raises(ConfigError, match="a row or a block is given twice"):
            rows_to_blocks(engine.kv, named, *twice, [2, 3])
    with pytest.raises(ConfigError, match="layer_idx is 3: the cache has layers 0 to 2"):
        rows_to_blocks(engine.kv, named, [0], [0], [2], layer_idx=3)
    with pytest.raises(ConfigError, match="tables is empty: give the table of each row"):
        rows_to_blocks(engine.kv, {}, [], [], [])
    engine.free(a)
    with pytest.raises(BlockError, match="session 'A' holds no blocks"):
        rows_to_blocks(engine.kv, tables(A=a), [0], [0], [2])
    large = make_engine(small_model, block_size=32)
    with pytest.raises(ConfigError, match="blocks have 32 slots: at most 16 can be drawn"):
        rows_to_blocks(large.kv, tables(A=start(large, 2)), [0], [0], [2])
