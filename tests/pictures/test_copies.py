"""The picture of copy-on-write: each block's owners and slots, and an arrow for each copy."""

import pytest

from rosecourse import EngineConfig, InferenceEngine
from rosecourse.pictures.colours import EMPTY, OWNER_COLOURS, SHARED, WRONG
from rosecourse.pictures.slots import blocks_and_copies
from tests.support.diagram_reader import arrows, parse, start, strips, texts

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


def test_a_block_shows_its_owners_and_what_its_slots_hold(engine):
    tables = family(engine)
    picture = blocks_and_copies(tables, held(tables, b1=["P", "P", "B", ""]), WORDS)
    assert list(strips(picture)) == [0, 1]
    _, slots, owners = strips(picture)[1]
    assert owners == "A + B + C"
    assert [cell.text for cell in slots] == ["P", "P", "B", ""]
    assert [cell.fill for cell in slots] == [SHARED, SHARED, OWNER_COLOURS[1], EMPTY]
    assert arrows(picture) == []
    assert {"P: prompt", "B's token", "empty"} <= set(texts(picture))
    assert "block 1 of A + B + C holds prompt, prompt, B, nothing" in parse(picture)[0].text


def test_each_copy_has_an_arrow_to_it(engine):
    tables = family(engine)
    copies = engine.kv.place(list(tables.values()))
    picture = blocks_and_copies(tables, held(tables), WORDS, copies)
    lines = {block: line for block, (line, _, _) in strips(picture).items()}
    assert arrows(picture) == [(lines[copy.source], lines[copy.destination]) for copy in copies]
    assert len(copies) == 2
    assert strips(picture)[copies[0].destination][2] == "A"
    assert "is to be copied to block" in parse(picture)[0].text


def test_a_wrong_slot_is_outlined(engine):
    tables = family(engine)
    picture = blocks_and_copies(tables, held(tables), WORDS, wrong=[(1, 2)])
    marked = {
        (block, slot): cell.outline
        for block, (_, slots, _) in strips(picture).items()
        for slot, cell in enumerate(slots)
        if cell.marked
    }
    assert marked == {(1, 2): WRONG}
    assert "slot 2 of block 1 is wrong" in parse(picture)[0].text
    assert "outlined: wrong" in texts(picture)
