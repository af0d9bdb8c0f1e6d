"""Pictures of the KV cache: what is drawn is what the engine holds, block by block and story by story."""

from dataclasses import FrozenInstanceError

import pytest

from rosecourse import BlockError
from rosecourse.pictures.blocks import block_map, moments, table_map
from rosecourse.pictures.colours import EMPTY, OWNER_COLOURS, USED
from tests.support.diagram_reader import cells, entries, make_engine, marked, start, step, tables, texts

BLUE, ORANGE = OWNER_COLOURS[:2]


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


def test_block_map_shows_every_block_as_the_engine_holds_it(engine):
    a, b = start(engine, 6), start(engine, 9, first=20)
    for _ in range(3):
        step(engine, b, a)  # b's new blocks come before a's
        shown = cells(block_map(engine.kv, tables(A=a, B=b)))
        assert [cell.index for cell in shown] == list(range(12))
        owner = {block: name for name, s in (("A", a), ("B", b)) for block in s.block_ids_per_layer[0]}
        for cell in shown:
            if cell.index not in owner:
                assert (cell.texts, cell.colours) == ([f"#{cell.index}", "free"], [])
                continue
            length = engine.kv.info(cell.index).length
            assert cell.texts == [f"#{cell.index}", f"{length} of 4", owner[cell.index], "1 owner"]
            assert cell.colours == [{"A": BLUE, "B": ORANGE}[owner[cell.index]]]
            assert cell.filled == pytest.approx(length / 4, abs=0.01)
    shown = entries(table_map(engine.kv, tables(A=a, B=b)))
    ids = {"A": a.block_ids_per_layer[0], "B": b.block_ids_per_layer[0]}
    assert {place: cell.index for place, cell in shown.items()} == {
        (name, logical): block for name, blocks in ids.items() for logical, block in enumerate(blocks)
    }
    assert all(f"{engine.kv.info(cell.index).length} of 4" in cell.texts for cell in shown.values())


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
    kept, _, partial, other, *_ = cells(after)
    assert kept.texts == ["#0", "4 of 4", "no owner", "only cached", "owners 1→0"]
    assert kept.filled == 1
    assert kept.colours[0] not in OWNER_COLOURS
    assert partial.texts == ["#2", "free", "freed"]
    assert "KV cache, layer 0: 12 blocks of 4 slots; 2 held, 2 only cached, 8 free" in texts(after)
    assert other.colours == cells(before)[3].colours == [ORANGE]  # B keeps its colour when A goes
    assert [cell.fill for cell in cells(after)[:4]] == [EMPTY, EMPTY, EMPTY, USED]


@pytest.mark.parametrize(("block_size", "separators"), [(1, 0), (16, 15), (32, 0)])
def test_bar_of_a_large_block_has_no_lines(small_model, block_size, separators):
    engine = make_engine(small_model, block_size=block_size, num_blocks=64)
    cell = cells(block_map(engine.kv, tables(A=start(engine, 15))))[0]
    assert cell.separators == separators
    assert cell.filled == pytest.approx(min(15, block_size) / block_size, abs=0.01)


def test_rollover_marks_the_token_and_the_new_block(engine):
    a = start(engine, 7)
    pictures = [table_map(engine.kv, tables(A=a))]
    for _ in range(2):
        step(engine, a)
        pictures.append(table_map(engine.kv, tables(A=a), since=pictures[-1]))
    assert [marked(p) for p in pictures] == [set(), {1}, {2}]
    assert entries(pictures[1])["A", 1].texts == ["#1", "4 of 4", "A", "1 owner", "+1 token"]
    assert entries(pictures[2])["A", 2].texts == ["#2", "1 of 4", "A", "1 owner", "new"]


@pytest.mark.parametrize("draw", [block_map, table_map])
def test_fork_and_its_copy_on_write_are_marked(engine, draw):
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
    by_index = {cell.index: cell for cell in cells(copied)}
    assert by_index[0].texts == ["#0", "4 of 4", "A + B", "2 owners"]
    assert by_index[1].texts == ["#1", "2 of 4", "A", "1 owner", "owners 2→1"]
    was = ["was #1"] if draw is table_map else []
    assert by_index[2].texts == ["#2", "3 of 4", "B", "1 owner", *was, "new"]


def test_picture_is_a_snapshot_and_the_same_state_the_same_bytes(small_model):
    engines = [make_engine(small_model) for _ in range(2)]
    pictures = []
    for engine in engines:
        a = start(engine, 6)
        before = block_map(engine.kv, tables(A=a), highlight={3, 7, 5})
        after = table_map(engine.kv, tables(A=a, B=engine.fork(a)), since=before)
        pictures.append((before, moments(("before", before), ("after", after))))
        engine.kv.audit([a.block_ids_per_layer] * 2)  # drawing changes nothing
    assert pictures[0] == pictures[1]
    (before, both), svg = pictures[0], pictures[0][0].svg
    step(engines[0], start(engines[0], 3))
    assert before.svg == svg
    assert before.snapshot.blocks[1].length == 2
    assert both._repr_svg_() == pictures[1][1].svg
    assert repr(both) == f"Picture(width={both.width}, height={both.height})"
    with pytest.raises(FrozenInstanceError):
        both.body = ""


def test_names_and_captions_are_escaped(engine):
    name, caption = "<b>&\"'\x00\ud800\n日本", "1 < 2 & </svg>"
    picture = moments((caption, block_map(engine.kv, {name: start(engine, 2).block_ids_per_layer})))
    assert caption in texts(picture)
    assert any(text.startswith("<b>&\"'\ufffd\ufffd 日本: 2 tokens") for text in texts(picture))
    picture.svg.encode()  # nothing that UTF-8 cannot hold


def test_table_that_is_not_of_this_cache_is_refused(engine):
    a, gone = start(engine, 2), start(engine, 2)
    freed, mine = gone.block_ids_per_layer, a.block_ids_per_layer
    engine.free(gone)
    holds_none, no_lists = "session 'A' holds no blocks: it was freed, or never", "table of 'A' has no list for each"
    cases = [(None, holds_none), (freed, holds_none), (a, no_lists), (mine[0], no_lists), ([], no_lists)]
    cases += [([[block], [], []], f"block {block} is not in use") for block in (5, -1, 99)]
    cases += [([mine[1], [], []], "shows block 12, which is not of layer 0")]
    for table, words in cases:
        with pytest.raises(BlockError, match=words):
            block_map(engine.kv, {"A": table})
    with pytest.raises(BlockError, match="block #0 of layer 0 has 1 owner, and A, B show it"):
        table_map(engine.kv, {"A": mine, "B": mine})
