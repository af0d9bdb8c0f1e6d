"""Pictures of the KV cache: the same bytes each time, all inside the sheet, and errors that say what is wrong."""

from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest

from rosecourse import BlockError
from rosecourse.pictures.blocks import block_map, moments, table_map
from rosecourse.pictures.sheet import WIDTH
from tests.support.diagram_reader import SVG, boxes, cells, make_engine, parse, start, step, tables, texts


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


# -- pictures -------------------------------------------------------------------------------------------------------


def story(model):
    engine = make_engine(model)
    a = start(engine, 6)
    before = block_map(engine.kv, tables(A=a), highlight={3, 7, 5})
    b = engine.fork(a)
    step(engine, b)
    named = tables(A=a, B=b)
    pair = (("before", before), ("after", block_map(engine.kv, named, since=before)))
    return moments(*pair, ("tables", table_map(engine.kv, named, since=before)))


def test_the_same_state_gives_the_same_bytes(small_model):
    one, two = story(small_model), story(small_model)
    assert one.svg.encode() == two.svg.encode()
    assert one == two
    assert repr(one) == repr(two) == f"Picture(width={one.width}, height={one.height})"
    assert one._repr_svg_() == one.svg
    assert " id=" not in one.svg


def test_a_picture_is_a_snapshot(engine):
    a = start(engine, 6)
    picture = block_map(engine.kv, tables(A=a))
    svg, state = picture.svg, picture.snapshot
    table_map(engine.kv, tables(A=a))
    engine.kv.audit([a.block_ids_per_layer])  # drawing changes nothing
    step(engine, a)
    engine.free(a)
    assert (picture.svg, picture.snapshot) == (svg, state)
    assert picture.snapshot.blocks[1].length == 2
    with pytest.raises(FrozenInstanceError):
        picture.svg = ""


def test_names_and_captions_are_escaped(engine):
    name, caption = "<b>&\"'\x00\ud800\n日本", "1 < 2 & </svg>"
    picture = moments((caption, block_map(engine.kv, {name: start(engine, 2).block_ids_per_layer})))
    assert caption in texts(picture)
    assert any(text.startswith("<b>&\"'\ufffd\ufffd 日本: 2 tokens") for text in texts(picture))
    picture.svg.encode()  # nothing that UTF-8 cannot hold


def test_moments_stand_side_by_side_where_they_fit(engine):
    a = start(engine, 6)
    narrow, wide = (block_map(engine.kv, tables(A=a), columns=columns) for columns in (4, 8))
    beside, above = moments(("one", narrow), ("two", narrow)), moments(("one", wide), ("two", narrow))
    assert 2 * narrow.width < beside.width <= WIDTH
    assert beside.height < 2 * narrow.height
    assert above.height > wide.height + narrow.height
    assert len(cells(beside)) == 2 * len(cells(narrow))
    assert len(cells(above)) == len(cells(wide)) + len(cells(narrow))
    assert [t for t in texts(beside) if t in ("one", "two")] == ["one", "two"]
    assert moments(("outer", beside)).width == beside.width


def pictures_to_fit(model):
    long_name = "a name that is <far> too long for any cell & also for a legend of its own, WWWWWWWW"
    for block_size, num_blocks, num_tokens, count in (
        (4, 64, 11, 16),
        (64, 5, 40, 2),
        (1, 64, 20, 3),
    ):
        engine = make_engine(model, block_size, num_blocks, prefix_cache=True)
        sessions = [start(engine, num_tokens, 30 * (i % 5) + 1) for i in range(count)]
        named = {f"s{i}": s.block_ids_per_layer for i, s in enumerate(sessions)}
        named[long_name] = named.pop("s0")
        before = {draw: draw(engine.kv, named) for draw in (block_map, table_map)}
        forks = {f"fork {i}": engine.fork(sessions[0]).block_ids_per_layer for i in range(12)}
        step(engine, *sessions[1:])
        for draw, more in ((block_map, {"columns": 2}), (block_map, {}), (table_map, {})):
            picture = draw(engine.kv, named | forks, since=before[draw], **more)
            yield moments((long_name, before[draw]), ("after", picture))


def test_pictures_are_legible_and_texts_stay_in_their_cells(small_model):
    for picture in pictures_to_fit(small_model):
        root = parse(picture)
        assert root.get("viewBox") == f"0 0 {picture.width} {picture.height}"
        assert root[1].get("fill") == "white"
        assert all(int(text.get("fill")[1:3], 16) < 0x60 for text in root.iter(f"{SVG}text"))  # dark
        for what, left, top, right, bottom in boxes(root):
            assert left >= 0, what
            assert top >= 0, what
            assert right <= picture.width <= WIDTH, what
            assert bottom <= picture.height, what
        for group in root.iter(f"{SVG}g"):
            if group.get("class") in ("cell", "cell marked"):
                (_, left, top, right, bottom), *others = boxes(group)
                assert all(
                    left <= x0 and x1 <= right and top <= y0 and y1 <= bottom + 1 for _, x0, y0, x1, y1 in others
                )
                said = [(y0, y1) for what, _, y0, _, y1 in others if what != "rect"]
                assert all(one[1] <= two[0] + 4 for one, two in pairwise(said))


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [block_map, table_map])
def test_a_session_without_blocks(engine, draw):
    a = start(engine, 2)
    kept = a.block_ids_per_layer
    engine.free(a)
    for table in (a.block_ids_per_layer, kept):  # None, and the table that was freed
        with pytest.raises(BlockError, match="session 'A' holds no blocks: it was freed, or never computed"):
            draw(engine.kv, {"A": table})


def test_tables_that_are_not_of_this_cache(engine):
    a = start(engine, 2)
    for table in (a, a.block_ids_per_layer[0], []):
        with pytest.raises(BlockError, match="table of 'A' has no list for each layer"):
            block_map(engine.kv, {"A": table})
    for block in (5, -1, 99):
        with pytest.raises(BlockError, match=f"block {block} is not in use"):
            block_map(engine.kv, {"A": [[block], [], []]})
    with pytest.raises(BlockError, match="shows block 12, which is not of layer 0"):
        block_map(engine.kv, {"A": [a.block_ids_per_layer[1], [], []]})
    with pytest.raises(BlockError, match="block #0 of layer 0 has 1 owner, and A, B show it"):
        block_map(engine.kv, {"A": a.block_ids_per_layer, "B": a.block_ids_per_layer})
