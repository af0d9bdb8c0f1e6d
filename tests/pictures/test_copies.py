"""The picture of copy-on-write: each block's owners and slots, and an arrow for each copy."""

import pytest

from rosecourse import BlockError, ConfigError, EngineConfig, InferenceEngine
from rosecourse.pictures.blocks import moments
from rosecourse.pictures.copies import blocks_and_copies
from rosecourse.pictures.sheet import CACHED_COLOUR, EMPTY, OWNER_COLOURS
from tests.support.diagram_reader import SVG, parse, start, texts

WORDS = {"P": "prompt"}


@pytest.fixture
def engine(small_model):
    config = EngineConfig(block_size=4, max_batch_size=8, num_blocks=12, max_seq_len=32, prefix_cache=False)
    return InferenceEngine(small_model, config)


def family(engine, length=6, forks=2):
    first = start(engine, length)
    sessions = [first, *(engine.fork(first) for _ in range(forks))]
    return {name: session.table for name, session in zip("ABCDEFGH", sessions, strict=False)}


def held(tables, **others):
    """The words of a prompt in all blocks of these tables; `b3=` has the words of block 3."""
    words = {block: ["P"] * 4 for table in tables.values() for block in table}
    return words | {int(name[1:]): given for name, given in others.items()}


def strips(picture):
    """{block: its group}"""
    groups = [group for group in parse(picture).iter(f"{SVG}g") if group.get("class") == "strip"]
    return {int(group.get("data-block")): group for group in groups}


def said(group):
    return [text.text for text in group.iter(f"{SVG}text")]


def tips(picture):
    """{(from, to): (x, y) of the arrow's tip}"""
    found = {}
    for group in parse(picture).iter(f"{SVG}g"):
        if group.get("class") == "copy":
            head = [path.get("d") for path in group.iter(f"{SVG}path")][-1]
            x, y = head[1:].split("L")[0].split()
            found[int(group.get("data-from")), int(group.get("data-to"))] = (float(x), float(y))
    return found


def test_a_block_shows_its_owners_and_what_its_slots_hold(engine):
    tables = family(engine)
    picture = blocks_and_copies(engine.kv, tables, held(tables, b1=["P", "P", "B", ""]), WORDS)
    assert list(strips(picture)) == [0, 1]
    shown = strips(picture)[1]
    assert said(shown) == ["#1", "P", "P", "B", "A + B + C"]
    fills = [rect.get("fill") for rect in shown.iter(f"{SVG}rect")]
    assert fills == [CACHED_COLOUR, CACHED_COLOUR, OWNER_COLOURS[1], EMPTY]
    assert tips(picture) == {}
    assert {"P: prompt", "B's token", "empty"} <= set(texts(picture))
    assert "block 1 of A + B + C holds prompt, prompt, B, nothing" in parse(picture)[0].text


def test_each_copy_has_an_arrow_that_ends_before_it(engine):
    tables = family(engine)
    copies = engine.kv.place(list(tables.values()))
    picture = blocks_and_copies(engine.kv, tables, held(tables), WORDS, copies)
    assert list(tips(picture)) == [tuple(copy) for copy in copies]
    assert len(copies) == 2
    for (source, destination), (x, y) in tips(picture).items():
        box = next(strips(picture)[destination].iter(f"{SVG}rect"))
        left, top, height = (float(box.get(key)) for key in ("x", "y", "height"))
        assert x < left
        assert top < y < top + height
        assert float(next(strips(picture)[source].iter(f"{SVG}rect")).get("x")) < x
    assert said(strips(picture)[copies[0].destination])[-1] == "A"
    assert "is to be copied to block" in parse(picture)[0].text


def test_a_wrong_slot_is_outlined(engine):
    tables = family(engine)
    picture = blocks_and_copies(engine.kv, tables, held(tables), WORDS, wrong=[(1, 2)])
    marked = {
        (block, int(rect.get("data-slot")))
        for block, group in strips(picture).items()
        for rect in group.iter(f"{SVG}rect")
        if rect.get("class") == "wrong"
    }
    assert marked == {(1, 2)}
    assert "slot 2 of block 1 is wrong" in parse(picture)[0].text
    assert "outlined: wrong" in texts(picture)


def test_moments_take_it(engine):
    tables = family(engine)
    picture = blocks_and_copies(engine.kv, tables, held(tables), WORDS)
    assert moments(("before", picture), ("after", picture)).width > picture.width
    assert picture == blocks_and_copies(engine.kv, tables, held(tables), WORDS)


@pytest.mark.parametrize(
    ("tables", "contents", "error", "match"),
    [
        (lambda kv, tables: {}, held, ConfigError, "tables is empty"),
        (lambda kv, tables: {"A": [0, 1]}, held, BlockError, "not one of this cache"),
        (lambda kv, tables: tables, lambda tables: {}, ConfigError, "4 words for each of the blocks"),
        (lambda kv, tables: tables, lambda tables: held(tables, b1=["?"] * 4), ConfigError, "what .'.'. stands for"),
        (lambda kv, tables: tables, lambda tables: held(tables, b1=["A"]), ConfigError, "4 words for each"),
    ],
)
def test_what_cannot_be_drawn_is_refused(engine, tables, contents, error, match):
    live = family(engine)
    with pytest.raises(error, match=match):
        blocks_and_copies(engine.kv, tables(engine.kv, live), contents(live), WORDS)


def test_a_freed_table_and_large_blocks_are_refused(engine, small_model):
    tables = family(engine)
    words = held(tables)
    engine.kv.free(tables["C"])
    with pytest.raises(BlockError, match="'C' is not one of this cache"):
        blocks_and_copies(engine.kv, tables, words, WORDS)
    large = InferenceEngine(small_model, EngineConfig(block_size=16, num_blocks=4, max_seq_len=32, max_batch_size=2))
    with pytest.raises(ConfigError, match="at most 8 can be drawn"):
        blocks_and_copies(large.kv, family(large, forks=0), {}, WORDS)
