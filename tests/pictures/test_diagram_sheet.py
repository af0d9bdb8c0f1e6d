"""Pictures of the KV cache: the same bytes each time, all inside the sheet, and errors that say what is wrong."""

from dataclasses import FrozenInstanceError

import pytest

from rosecourse import BlockError
from rosecourse.pictures.blocks import block_map, moments, table_map
from tests.support.diagram_reader import make_engine, start, step, tables, texts


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
