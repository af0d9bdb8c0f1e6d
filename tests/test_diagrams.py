"""Pictures of the KV cache: what is drawn is what the engine holds, the same bytes each time, and it fits."""

import re
from collections import Counter
from dataclasses import FrozenInstanceError
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from rosecourse import BASELINE, BlockError, ConfigError, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.diagram_sheet import OWNER_COLOURS
from rosecourse.diagrams import Picture, block_map, moments, table_map

SVG = "{http://www.w3.org/2000/svg}"
PARAMS = SamplingParams(max_new_tokens=20, stop_on_eos=False)
BLUE, ORANGE = OWNER_COLOURS[:2]


def make_engine(model, block_size=4, num_blocks=12, prefix_cache=False):
    config = EngineConfig(
        block_size=block_size, max_batch_size=16, num_blocks=num_blocks, max_seq_len=64, prefix_cache=prefix_cache
    )
    return InferenceEngine(model, config, BASELINE)


@pytest.fixture
def engine(small_model):
    return make_engine(small_model)


def start(engine, num_tokens, first=1):
    """A session whose prompt of `num_tokens` tokens is in the cache."""
    session = engine.new_session(range(first, first + num_tokens), PARAMS)
    engine.take_tokens([session], engine.prefill([session]))
    return session


def step(engine, *sessions):
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


def tables(**sessions):
    return {name: session.block_ids_per_layer for name, session in sessions.items()}


class Cell:
    """A block as it is drawn, read back from the SVG."""

    def __init__(self, group):
        self.index = int(group.get("data-block"))
        self.marked = group.get("data-marked") == "1"
        self.title = group.find(f"{SVG}title").text
        self.texts = [t.text for t in group.iter(f"{SVG}text")]
        rects = list(group.iter(f"{SVG}rect"))
        self.outline = rects[0]
        self.bands = [r for r in rects if r.get("class") == "filled"]
        self.colours = [r.get("fill") for r in self.bands]
        whole = [float(r.get("width")) for r in rects if r.get("class") == "empty"]
        self.filled = float(self.bands[0].get("width")) / whole[0] if self.bands else 0.0  # share of the slots
        self.separators = sum(p.get("d").count("M") for p in group.iter(f"{SVG}path") if p.get("class") == "slots")


def parse(picture):
    return ElementTree.fromstring(picture.svg)


def cells(picture):
    return [Cell(g) for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "block"]


def entries(picture):
    """{(session, logical block): Cell} of a table map."""
    groups = [g for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "entry"]
    return {(g.get("data-session"), int(g.get("data-logical"))): Cell(g.find(f"{SVG}g")) for g in groups}


def texts(picture):
    return [t.text for t in parse(picture).iter(f"{SVG}text")]


def marked(picture):
    return {cell.index for cell in cells(picture) if cell.marked}


@cache
def text_width(text, size, weight="normal"):
    """In DejaVu Sans, which matplotlib brings along: one of the widest fonts that a browser may choose."""
    return TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans", weight=weight)).get_extents().x1


def boxes(element, dx=0.0, dy=0.0):
    """(what, left, top, right, bottom) of each text and rectangle, in the coordinates of the whole picture."""
    for child in element:
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", child.get("transform", ""))
        x, y = (float(child.get(key, 0)) for key in ("x", "y"))
        if child.tag == f"{SVG}text":
            size = int(child.get("font-size"))
            width = text_width(child.text, size, child.get("font-weight", "normal"))
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[child.get("text-anchor", "start")]
            yield child.text, left + dx, y - size + dy, left + width + dx, y + 0.3 * size + dy
        elif child.tag == f"{SVG}rect":
            yield "rect", x + dx, y + dy, x + float(child.get("width")) + dx, y + float(child.get("height")) + dy
        yield from boxes(child, *((dx + float(moved[1]), dy + float(moved[2])) if moved else (dx, dy)))


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


def test_the_heading_and_the_legend_count(engine):
    picture = block_map(engine.kv, tables(A=start(engine, 6), B=start(engine, 1)))
    assert "KV cache, layer 0: 12 blocks of 4 slots; 3 held, 9 free" in texts(picture)
    assert "A: 6 tokens in 2 blocks" in texts(picture)
    assert "B: 1 token in 1 block" in texts(picture)
    assert "changed" not in texts(picture)


def test_another_layer_has_its_own_blocks_and_says_how_ids_are_counted(engine):
    a = start(engine, 6)
    # One more block in layer 2 alone, so that the layers differ.
    zeros = engine.kv.k_layers[0].new_zeros(engine.kv.k_layers[0].shape[1::2])
    for _ in range(3):
        engine.kv.append_token(2, a.block_ids_per_layer[2], zeros, zeros)
    first, third = (block_map(engine.kv, tables(A=a), layer) for layer in (0, 2))
    assert Counter(c.texts[1] for c in cells(first)) == {"4 of 4": 1, "2 of 4": 1, "free": 10}
    assert Counter(c.texts[1] for c in cells(third)) == {"4 of 4": 2, "1 of 4": 1, "free": 9}
    assert "KV cache, layer 2: 12 blocks of 4 slots; 3 held, 9 free (block id = 24 + #)" in texts(third)
    assert "block id" not in first.svg
    indices = [cell.index for (_, _), cell in sorted(entries(table_map(engine.kv, tables(A=a), 2)).items())]
    assert [24 + index for index in indices] == a.block_ids_per_layer[2]


def test_owners_without_a_name_are_shown_as_others(engine):
    a = start(engine, 6)
    b, _ = engine.fork(a), start(engine, 2, first=30)
    shown = cells(block_map(engine.kv, tables(B=b)))
    assert shown[0].texts == ["#0", "4 of 4", "B + 1 more", "2 owners"]
    assert len(set(shown[0].colours)) == 2
    assert shown[2].texts == ["#2", "2 of 4", "other", "1 owner"]
    assert shown[2].colours == [shown[0].colours[1]]
    assert any("without a name" in text for text in texts(block_map(engine.kv, {})))


def test_a_block_of_many_owners_says_how_many(engine):
    a = start(engine, 6)
    many = {f"s{i}": engine.fork(a).block_ids_per_layer for i in range(11)}
    cell = cells(block_map(engine.kv, {"A": a.block_ids_per_layer, **many}))[0]
    assert cell.texts[3] == "12 owners"
    named, more = re.fullmatch(r"A((?: \+ s\d+)*) \+ (\d+) more", cell.texts[2]).groups()
    assert named.count("+") + 1 + int(more) == 12
    assert len(set(cell.colours)) == len(cell.bands) == 4
    assert all(f"s{i}" in cell.title for i in range(11))  # the tooltip has them all


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
    unmarked = cells(block_map(engine.kv, tables(B=b)))
    assert [cell.outline.get("stroke-dasharray") is not None for cell in unmarked[:4]] == [True, True, True, False]


def test_more_sessions_than_colours_are_told_apart_by_their_names(small_model):
    engine = make_engine(small_model, num_blocks=16)
    shown = cells(block_map(engine.kv, {f"s{i}": start(engine, 2, i + 1).block_ids_per_layer for i in range(16)}))
    assert [cell.texts[2] for cell in shown] == [f"s{i}" for i in range(16)]
    assert [cell.colours for cell in shown] == [[colour] for colour in OWNER_COLOURS * 2]


@pytest.mark.parametrize(("block_size", "separators"), [(1, 0), (4, 3), (16, 15), (32, 0), (64, 0)])
def test_large_blocks_have_a_bar_instead_of_slots(small_model, block_size, separators):
    engine = make_engine(small_model, block_size=block_size, num_blocks=64)
    cell = cells(block_map(engine.kv, tables(A=start(engine, 15))))[0]
    assert cell.separators == separators
    assert cell.filled == pytest.approx(min(15, block_size) / block_size, abs=0.01)


def test_the_free_end_of_a_large_pool_is_only_counted(small_model):
    engine = make_engine(small_model, num_blocks=65)
    assert len(cells(block_map(engine.kv, {}))) == 8
    a = start(engine, 35)  # 9 blocks: a row of 8, and one more
    picture = block_map(engine.kv, tables(A=a))
    assert len(cells(picture)) == 16
    assert "and 49 more free blocks, #16 to #64" in texts(picture)
    assert len(cells(block_map(engine.kv, tables(A=a), highlight={64}))) == 72 - 7
    assert len(cells(block_map(make_engine(small_model, num_blocks=64).kv, {}))) == 64


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
    assert [t for t in texts(picture) if t.startswith("logical")] == ["logical 0", "logical 1", "logical 2"] * 2


def test_a_rollover(engine):
    a = start(engine, 7)
    pictures = [table_map(engine.kv, tables(A=a))]
    for _ in range(2):
        step(engine, a)
        pictures.append(table_map(engine.kv, tables(A=a), since=pictures[-1]))
    assert [marked(p) for p in pictures] == [set(), {1}, {2}]
    assert entries(pictures[1])["A", 1].texts == ["#1", "4 of 4", "A", "1 owner", "+1 token"]
    assert entries(pictures[2])["A", 2].texts == ["#2", "1 of 4", "A", "1 owner", "new"]
    assert "changed" in texts(pictures[2])


@pytest.mark.parametrize("draw", [block_map, table_map])
def test_a_fork_and_its_copy_on_write(engine, draw):
    a = start(engine, 6)
    alone = draw(engine.kv, tables(A=a))
    b = engine.fork(a)
    shared = draw(engine.kv, tables(A=a, B=b), since=alone)
    assert marked(shared) == {0, 1}
    for cell in cells(shared)[:2]:
        assert cell.texts[2:] == ["A + B", "2 owners", "owners 1→2"]
        assert cell.colours == [BLUE, ORANGE]
    step(engine, b)
    copied = draw(engine.kv, tables(A=a, B=b), since=shared)
    assert marked(copied) == {1, 2}
    by_index = {cell.index: cell for cell in cells(copied)}
    assert by_index[0].texts == ["#0", "4 of 4", "A + B", "2 owners"]
    assert by_index[1].texts == ["#1", "2 of 4", "A", "1 owner", "owners 2→1"]
    was = ["was #1"] if draw is table_map else []
    assert by_index[2].texts == ["#2", "3 of 4", "B", "1 owner", *was, "new"]
    assert (by_index[1].colours, by_index[2].colours) == ([BLUE], [ORANGE])


def test_a_block_that_is_freed_and_taken_again_says_so(engine):
    a, b = start(engine, 7), start(engine, 3, first=20)
    before = block_map(engine.kv, tables(A=a, B=b))
    engine.free(b)
    engine.free(a)
    c = start(engine, 3, first=30)  # into a's first block
    after = cells(block_map(engine.kv, tables(C=c), since=before))
    assert c.block_ids_per_layer[0] == [0]
    assert [cell.texts[-1] for cell in after[:3]] == ["used anew", "freed", "freed"]


def test_a_new_owner_of_the_same_block_is_a_change(engine):
    a = start(engine, 4)
    before = block_map(engine.kv, tables(A=a))
    engine.free(a)
    after = cells(block_map(engine.kv, tables(B=start(engine, 4, first=30)), since=before))
    assert after[0].texts[-1] == "was A's"
    assert after[0].marked


def test_highlight_gives_a_thick_outline_and_a_legend(engine):
    a = start(engine, 6)
    plain, lit = block_map(engine.kv, tables(A=a), 1), block_map(engine.kv, tables(A=a), 1, highlight={13, 20})
    assert marked(plain) == set()
    assert marked(lit) == {1, 8}
    widths = {cell.index: int(cell.outline.get("stroke-width")) for cell in cells(lit)}
    assert widths[1] == widths[8] == 3 > widths[0]
    assert "marked" in texts(lit)
    assert marked(table_map(engine.kv, tables(A=a), 1, highlight={13})) == {1}


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
    step(engine, a)
    engine.free(a)
    assert (picture.svg, picture.snapshot) == (svg, state)
    assert picture.snapshot.blocks[1].length == 2
    with pytest.raises(FrozenInstanceError):
        picture.svg = ""


def test_drawing_changes_nothing(engine):
    a = start(engine, 6)
    b = engine.fork(a)
    for layer in range(engine.kv.num_layers):
        block_map(engine.kv, tables(A=a, B=b), layer)
        table_map(engine.kv, tables(A=a, B=b), layer)
    engine.kv.check([a.block_ids_per_layer, b.block_ids_per_layer])


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
    assert beside.width > 2 * narrow.width
    assert beside.width <= 900
    assert beside.height < 2 * narrow.height
    assert above.width == wide.width
    assert above.height > wide.height + narrow.height
    assert len(cells(beside)) == len(cells(above)) == 24
    assert [t for t in texts(beside) if t in ("one", "two")] == ["one", "two"]
    assert moments(("outer", beside)).width == beside.width


def pictures_to_fit(model):
    long_name = "a name that is <far> too long for any cell & also for a legend of its own, WWWWWWWW"
    for block_size, num_blocks, num_tokens, count in (
        (4, 64, 11, 16),
        (16, 5, 19, 2),
        (64, 64, 40, 16),
        (1, 64, 20, 3),
    ):
        engine = make_engine(model, block_size, num_blocks, prefix_cache=True)
        sessions = [start(engine, num_tokens, 30 * (i % 5) + 1) for i in range(count)]
        named = {f"s{i}": s.block_ids_per_layer for i, s in enumerate(sessions)}
        named[long_name] = named.pop("s0")
        before = {draw: draw(engine.kv, named, 2) for draw in (block_map, table_map)}
        forks = {f"fork {i}": engine.fork(sessions[0]).block_ids_per_layer for i in range(12)}
        step(engine, *sessions[1:])
        for draw in (block_map, table_map):
            for columns in (2, 8):
                picture = draw(engine.kv, named | forks, 2, since=before[draw], columns=columns)
                yield picture
                yield moments((long_name, before[draw]), ("after", picture))


def test_everything_lies_inside_the_picture_and_a_notebook(small_model):
    for picture in pictures_to_fit(small_model):
        root = parse(picture)
        assert root.get("viewBox") == f"0 0 {picture.width} {picture.height}"
        assert picture.width <= 900
        for what, left, top, right, bottom in boxes(root):
            inside = left >= 0 and top >= 0 and right <= picture.width and bottom <= picture.height
            assert inside, f"{what}: {left:.0f} to {right:.0f}, {top:.0f} to {bottom:.0f} in {picture}"


def test_texts_stay_in_their_cells_and_off_each_other(small_model):
    for picture in pictures_to_fit(small_model):
        for group in parse(picture).iter(f"{SVG}g"):
            if group.get("class") != "block":
                continue
            (_, left, top, right, bottom), *others = boxes(group)
            lines = {}
            for what, x0, y0, x1, y1 in others:
                assert left <= x0 < x1 <= right, what
                assert top <= y0 < y1 <= bottom + 1, what
                if what != "rect":
                    lines.setdefault(y1 // 5, []).append((x0, x1, what))
            for line in map(sorted, lines.values()):
                assert all(one[1] <= two[0] for one, two in pairwise(line)), line


def test_a_picture_is_white_and_its_texts_are_dark(engine):
    root = parse(block_map(engine.kv, tables(A=start(engine, 6))))
    title, background = root[0], root[1]
    assert title.text.endswith("A: 6 tokens in blocks [0, 1]")
    assert (background.get("width"), background.get("height")) == (root.get("width"), root.get("height"))
    assert background.get("fill") == "white"
    assert all(int(t.get("fill")[1:3], 16) < 0x60 for t in root.iter(f"{SVG}text"))


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [block_map, table_map])
@pytest.mark.parametrize("layer", [-1, 3, True, 0.0, None])
def test_a_layer_that_is_not_there(engine, draw, layer):
    with pytest.raises(ConfigError, match=rf"layer_idx is {layer!r}: the cache has layers 0 to 2"):
        draw(engine.kv, tables(A=start(engine, 2)), layer)


@pytest.mark.parametrize("draw", [block_map, table_map])
def test_a_session_without_blocks(engine, draw):
    a = start(engine, 2)
    kept = a.block_ids_per_layer
    engine.free(a)
    for table in (a.block_ids_per_layer, kept):  # None, and the table that was freed
        with pytest.raises(BlockError, match="session 'A' holds no blocks: it was freed, or never computed; prefill"):
            draw(engine.kv, {"A": table})


def test_tables_that_are_not_of_this_cache(engine):
    a = start(engine, 2)
    with pytest.raises(ConfigError, match="tables is not a mapping"):
        block_map(engine.kv, a.block_ids_per_layer)
    for table in (a, a.block_ids_per_layer[0], [], [1, 2, 3]):
        with pytest.raises(ConfigError, match="table of 'A' has no list for each layer"):
            block_map(engine.kv, {"A": table})
    for block in (5, 12, -1, 99):
        with pytest.raises(BlockError, match=rf"table of 'A' shows block {block}, which is not in use in layer 0"):
            block_map(engine.kv, {"A": [[block], [], []]})
    with pytest.raises(BlockError, match="block 0 counts 1 owner, and the tables of A, B show it"):
        block_map(engine.kv, {"A": a.block_ids_per_layer, "B": a.block_ids_per_layer})
    with pytest.raises(ConfigError, match="tables is empty"):
        table_map(engine.kv, {})


def test_highlights_that_are_not_there(engine):
    for block in (-1, 12, 99):
        with pytest.raises(ConfigError, match=rf"highlight shows block {block}: layer 0 has blocks 0 to 11"):
            block_map(engine.kv, {}, highlight={block})
    with pytest.raises(ConfigError, match="layer 2 has blocks 24 to 35"):
        block_map(engine.kv, {}, 2, highlight={0})
    for wrong in (3, {"A"}, None):
        with pytest.raises(ConfigError, match=r"highlight is .*: give a set of block ids"):
            block_map(engine.kv, {}, highlight=wrong)


def test_pictures_that_cannot_be_compared(engine, small_model):
    layer_0, other = block_map(engine.kv, {}), block_map(make_engine(small_model, block_size=8).kv, {})
    with pytest.raises(ConfigError, match="since shows layer 0 with 12 blocks of 4 slots, not layer 1 with 12 of 4"):
        block_map(engine.kv, {}, 1, since=layer_0)
    with pytest.raises(ConfigError, match="12 blocks of 8 slots, not layer 0 with 12 of 4"):
        block_map(engine.kv, {}, since=other)
    for wrong in (moments(("both", layer_0)), "before", 3):
        with pytest.raises(ConfigError, match="give an earlier picture by block_map or table_map"):
            block_map(engine.kv, {}, since=wrong)


@pytest.mark.parametrize("columns", [0, 1, 9, 2.5, None, True])
def test_a_number_of_columns_that_does_not_fit(engine, columns):
    with pytest.raises(ConfigError, match=rf"columns is {columns!r}: give a number from 2 to 8"):
        block_map(engine.kv, {}, columns=columns)


def test_moments_that_are_none(engine):
    with pytest.raises(ConfigError, match="no moments are given"):
        moments()
    picture = block_map(engine.kv, {})
    for wrong in (picture, ("caption",), ("caption", "picture"), (picture, "caption")):
        with pytest.raises(ConfigError, match="is not a moment: give a pair") as caught:
            moments(("fine", picture), wrong)
        assert len(str(caught.value)) < 200
    assert isinstance(moments(("fine", picture)), Picture)
