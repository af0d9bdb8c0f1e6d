"""Pictures of the KV cache: what is drawn is what the engine holds, block by block and story by story."""

import pytest

from rosecourse.pictures.blocks import block_map, table_map
from rosecourse.pictures.colours import EMPTY, OWNER_COLOURS, USED
from tests.support.diagram_reader import BLUE, ORANGE, cells, entries, make_engine, marked, start, step, tables, texts


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


# -- what is drawn is what the engine holds -------------------------------------------------------------------------


def test_a_block_map_shows_every_block_as_the_engine_holds_it(engine):
    a, b = start(engine, 6), start(engine, 9, first=20)
    for _ in range(3):
        step(engine, a, b)
        shown = cells(block_map(engine.kv, tables(A=a, B=b)))
        assert [cell.index for cell in shown] == list(range(12))
        owner = {block: name for name, s in (("A", a), ("B", b)) for block in s.block_ids_per_layer[0]}
        for cell in shown:
            if cell.index not in owner:
                assert cell.texts == [f"#{cell.index}", "free"]
                assert not cell.bands
                continue
            length = engine.kv.info(cell.index).length
            assert cell.texts == [f"#{cell.index}", f"{length} of 4", owner[cell.index], "1 owner"]
            assert cell.colours == [{"A": BLUE, "B": ORANGE}[owner[cell.index]]]
            assert cell.filled == pytest.approx(length / 4, abs=0.01)
            assert cell.separators == 3


def test_owners_without_a_name_are_shown_as_others(engine):
    a = start(engine, 6)
    b, _ = engine.fork(a), start(engine, 2, first=30)
    shown = cells(block_map(engine.kv, tables(B=b)))
    assert shown[0].texts == ["#0", "4 of 4", "B + other", "2 owners"]
    assert len(set(shown[0].colours)) == 2
    assert shown[2].texts == ["#2", "2 of 4", "other", "1 owner"]
    assert shown[2].colours == [shown[0].colours[1]]
    assert any("without a name" in text for text in texts(block_map(engine.kv, {})))


def test_blocks_that_only_the_prefix_cache_keeps_are_marked(small_model):
    engine = make_engine(small_model, prefix_cache=True)
    a, b = start(engine, 9), start(engine, 5, first=30)
    before = block_map(engine.kv, tables(A=a, B=b))
    assert [("cached" in cell.texts) for cell in cells(before)][:5] == [True, True, False, True, False]
    engine.free(a)
    after = block_map(engine.kv, tables(B=b), since=before)
    kept, partial = cells(after)[0], cells(after)[2]
    assert kept.texts == ["#0", "4 of 4", "no owner", "only cached", "owners 1→0"]
    assert kept.filled == 1
    assert kept.colours[0] not in OWNER_COLOURS
    assert partial.texts == ["#2", "free", "freed"]
    assert "KV cache, layer 0: 12 blocks of 4 slots; 2 held, 2 only cached, 8 free" in texts(after)
    assert cells(after)[3].colours == cells(before)[3].colours == [ORANGE]  # B keeps its colour when A goes
    assert [cell.fill for cell in cells(after)[:4]] == [EMPTY, EMPTY, EMPTY, USED]


@pytest.mark.parametrize(("block_size", "separators"), [(1, 0), (16, 15), (32, 0)])
def test_large_blocks_have_a_bar_instead_of_slots(small_model, block_size, separators):
    engine = make_engine(small_model, block_size=block_size, num_blocks=64)
    cell = cells(block_map(engine.kv, tables(A=start(engine, 15))))[0]
    assert cell.separators == separators
    assert cell.filled == pytest.approx(min(15, block_size) / block_size, abs=0.01)


# -- block tables, and the stories that they tell -------------------------------------------------------------------


def test_a_block_table_shows_the_physical_block_of_each_logical_one(engine):
    a, b = start(engine, 6), start(engine, 9, first=20)
    for _ in range(3):
        step(engine, b, a)  # b's new blocks come before a's
    shown = entries(table_map(engine.kv, tables(A=a, B=b)))
    for name, session in (("A", a), ("B", b)):
        ids = session.block_ids_per_layer[0]
        assert [shown[name, logical].index for logical in range(len(ids))] == ids
        for logical, block in enumerate(ids):
            assert f"{engine.kv.info(block).length} of 4" in shown[name, logical].texts
    assert len(shown) == 6
    picture = table_map(engine.kv, tables(A=a, B=b))
    assert [t for t in texts(picture) if t.startswith("logical")] == ["logical 0 ↓", "logical 1 ↓", "logical 2 ↓"] * 2


def test_a_rollover(engine):
    a = start(engine, 7)
    pictures = [table_map(engine.kv, tables(A=a))]
    for _ in range(2):
        step(engine, a)
        pictures.append(table_map(engine.kv, tables(A=a), since=pictures[-1]))
    assert [marked(p) for p in pictures] == [set(), {1}, {2}]  # a block with a token more, and a new one
    assert entries(pictures[1])["A", 1].texts == ["#1", "4 of 4", "A", "1 owner", "+1 token"]
    assert entries(pictures[2])["A", 2].texts == ["#2", "1 of 4", "A", "1 owner", "new"]
    assert "entry or block has changed" in texts(pictures[2])
    assert "the block has changed" in texts(block_map(engine.kv, tables(A=a), since=pictures[1]))


@pytest.mark.parametrize("draw", [block_map, table_map])
def test_a_fork_and_its_copy_on_write(engine, draw):
    a = start(engine, 6)
    alone = draw(engine.kv, tables(A=a))
    b = engine.fork(a)
    shared = draw(engine.kv, tables(A=a, B=b), since=alone)
    assert marked(shared) == {0, 1}  # the table of the fork is new
    for cell in cells(shared)[:2]:
        assert cell.texts[2:] == ["A + B", "2 owners", "owners 1→2"]
        assert cell.colours == [BLUE, ORANGE]
    step(engine, b)
    copied = draw(engine.kv, tables(A=a, B=b), since=shared)
    assert marked(copied) == {1, 2}  # the one has an owner less, the other is new
    if draw is table_map:
        assert {"A: 6 tokens in 2 blocks", "B: 7 tokens in 2 blocks"} <= set(texts(copied))
    by_index = {cell.index: cell for cell in cells(copied)}
    assert by_index[0].texts == ["#0", "4 of 4", "A + B", "2 owners"]
    assert by_index[1].texts == ["#1", "2 of 4", "A", "1 owner", "owners 2→1"]
    was = ["was #1"] if draw is table_map else []
    assert by_index[2].texts == ["#2", "3 of 4", "B", "1 owner", *was, "new"]
    assert (by_index[1].colours, by_index[2].colours) == ([BLUE], [ORANGE])
