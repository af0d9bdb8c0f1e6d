"""Pictures of the paged KV cache, drawn from the running engine: they cannot disagree with it.

A picture is SVG text. The same state of the engine gives the same bytes, on every machine: there are no dates, no
random ids and no sizes that depend on a font. It is a snapshot: what the engine does later does not change it.

    before = block_map(engine.kv, {"A": a.block_ids_per_layer})
    engine.take_tokens([a], engine.decode_step_sessions([a]))
    after = block_map(engine.kv, {"A": a.block_ids_per_layer}, since=before)
    moments(("before the step", before), ("after", after))
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from xml.etree import ElementTree

from .errors import BlockError, ConfigError
from .kv.blocks import BlockIdsPerLayer, KVBlockManager

# Okabe and Ito's colours, which the common kinds of colour blindness tell apart, those that differ most first.
OWNER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
OTHER_COLOUR, CACHED_COLOUR = "#8C8C8C", "#C8C8C8"  # an owner without a name here; a block without any owner
INK, FAINT_INK, LINE, EMPTY = "#1A1A1A", "#595959", "#8C8C8C", "#ECEFF1"

WIDTH = 900  # of a notebook's output area, about
MARGIN, GAP, MAX_COLUMNS = 8, 5, 8
CELL, PAD, BAR = 104, 5, 14  # a block's width, the room around what is in it, and the height of its slots
TEXT, LINE_HEIGHT = 11, 14
BOLD = 1.15  # how much wider bold text is
SLOTS_DRAWN = 16  # larger blocks get a bar: slots of a few pixels say nothing
BANDS = 4  # colours that a block of many owners shows; its text says how many they are
FOLDED = 64  # of a larger pool the free blocks at the end are only counted


# -- what is drawn ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block at one moment. names: those of its owners that the picture knows, at most `owners` of them."""

    block_index: int
    start: int = 0
    length: int = 0
    owners: int = 0
    cached: bool = False
    names: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        return self.owners == 0 and not self.cached

    @property
    def num_others(self) -> int:
        return self.owners - len(self.names)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One layer of the pool at one moment. tables: each session's block indices, in the order of its tokens."""

    layer_idx: int
    block_size: int
    blocks: tuple[BlockState, ...]
    tables: tuple[tuple[str, tuple[int, ...]], ...]
    colour_order: tuple[str, ...]  # a session keeps its colour in later pictures, whoever comes and goes

    def colour(self, name: str) -> str:
        return OWNER_COLOURS[self.colour_order.index(name) % len(OWNER_COLOURS)]

    def num_tokens(self, indices: Sequence[int]) -> int:
        return sum(self.blocks[index].length for index in indices)


@dataclass(frozen=True, repr=False)
class Picture:
    """A finished picture. width and height are in pixels; snapshot: what it shows (None for several moments)."""

    svg: str
    width: int
    height: int
    snapshot: Snapshot | None = field(default=None, compare=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture(width={self.width}, height={self.height})"


def block_map(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int = 0,
    *,
    highlight: Collection[int] = (),
    since: Picture | None = None,
    columns: int = MAX_COLUMNS,
) -> Picture:
    """One layer of the pool: each block with its number, its filled slots, its owners and their count.

    tables: name -> `session.block_ids_per_layer`; a block of sessions that are not in it is drawn as another's.
    highlight: block ids, as the tables show them, to be drawn with a thick outline. since: an earlier picture of the
    same layer; what has changed gets a thick outline and says what it was. columns: blocks in a row, 2 to 8.
    Raises `BlockError` for a table that is freed or not of this cache, `ConfigError` for a layer, a block, a picture
    or a number of columns that is not there.
    """
    snapshot, notes = _snapshot_and_notes(kv, tables, layer_idx, highlight, since, columns)
    shown = _shown(snapshot, notes, columns)
    inner = _cells_width(max(2, min(columns, len(shown))))
    sheet = _Sheet(inner)
    sheet.heading(_title(snapshot))
    sheet.legend(_legend(snapshot, bool(notes), since is not None))
    rows = [shown[i : i + columns] for i in range(0, len(shown), columns)]
    height = _cell_height(notes.values())
    for row in rows:
        for column, state in enumerate(row):
            place = (MARGIN + column * (CELL + GAP), sheet.y)
            _draw_block(sheet.root, place, height, state, snapshot, notes.get(state.block_index))
        sheet.y += height + GAP
    folded = len(snapshot.blocks) - len(shown)
    if folded:
        sheet.line(f"and {folded} more free blocks, #{len(shown)} to #{len(snapshot.blocks) - 1}", FAINT_INK)
    return sheet.picture(f"{_title(snapshot)}. {_count_sessions(snapshot)}", snapshot)


def table_map(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int = 0,
    *,
    highlight: Collection[int] = (),
    since: Picture | None = None,
    columns: int = MAX_COLUMNS,
) -> Picture:
    """The block table of each session: for each logical block the physical one, with its fill and its owners.

    Arguments and errors are those of `block_map`, and `ConfigError` when `tables` is empty. With `since`, an entry that
    shows another block than before says which it was.
    """
    snapshot, notes = _snapshot_and_notes(kv, tables, layer_idx, highlight, since, columns)
    if not snapshot.tables:
        raise ConfigError("tables is empty: give at least one session's block_ids_per_layer")
    entry_notes = _entry_notes(snapshot, notes, since)
    height = _cell_height(entry_notes.values())
    in_row = max(2, min(columns, max(len(indices) for _, indices in snapshot.tables)))
    strips = _strips_in_row(len(snapshot.tables), in_row, columns)
    sheet = _Sheet(strips * (_cells_width(in_row) + 4 * GAP) - 4 * GAP)
    sheet.heading(f"Layer {layer_idx}: logical → physical{_id_rule(snapshot)}")
    for first in range(0, len(snapshot.tables), strips):
        bottom = sheet.y
        for column, (name, indices) in enumerate(snapshot.tables[first : first + strips]):
            place = (MARGIN + column * (_cells_width(in_row) + 4 * GAP), sheet.y)
            size = (in_row, height)
            bottom = max(bottom, _draw_table(sheet.root, place, size, name, indices, snapshot, entry_notes))
        sheet.y = bottom + GAP
    sheet.legend(_marks(snapshot, bool(entry_notes), since is not None, _in_tables(snapshot)))
    return sheet.picture(f"Block tables of layer {layer_idx}. {_count_sessions(snapshot)}", snapshot)


def moments(*captioned: tuple[str, Picture]) -> Picture:
    """Several pictures as one, each under its caption: side by side where they fit, else one above the other.

    Each argument is a pair (caption, picture). Raises `ConfigError` for none at all and for what is not such a pair.
    """
    if not captioned:
        raise ConfigError('no moments are given: give pairs such as ("before the step", picture)')
    for pair in captioned:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Picture)):
            raise ConfigError(f"{_plain(pair):.60} is not a moment: give a pair (caption, picture)")
    pictures = [picture for _, picture in captioned]
    beside = sum(p.width for p in pictures) + GAP * (len(pictures) - 1) <= WIDTH
    width = sum(p.width for p in pictures) + GAP * (len(pictures) - 1) if beside else max(p.width for p in pictures)
    sheet = _Sheet(width - 2 * MARGIN)
    captions = [_wrapped(_plain(caption), p.width - 2 * MARGIN, (TEXT + 3) * BOLD) for caption, p in captioned]
    x, top, lines = 0, sheet.y, max(map(len, captions))
    for caption, picture in zip(captions, pictures, strict=True):
        y = top if beside else sheet.y
        for number, line in enumerate(caption):
            at = (x + MARGIN, y + TEXT + number * (LINE_HEIGHT + 3))
            _text(sheet.root, at, line, size=TEXT + 3, weight="bold")
        y += (lines if beside else len(caption)) * (LINE_HEIGHT + 3)
        _embed(sheet.root, picture, x, y)
        sheet.y = max(sheet.y, y + picture.height + GAP)
        x += picture.width + GAP if beside else 0
    return sheet.picture(f"{len(pictures)} moments: {'; '.join(_plain(caption) for caption, _ in captioned)}", None)


# -- from the engine to a snapshot ----------------------------------------------------------------------------------


def _snapshot_and_notes(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int,
    highlight: Collection[int],
    since: Picture | None,
    columns: int,
) -> tuple[Snapshot, dict[int, list[str]]]:
    """What both pictures start from: the state, and for each block with a thick outline what has changed in it."""
    if type(columns) is not int or not 2 <= columns <= MAX_COLUMNS:
        raise ConfigError(f"columns is {columns!r}: give a number from 2 to {MAX_COLUMNS}")
    if type(layer_idx) is not int or not 0 <= layer_idx < kv.num_layers:
        raise ConfigError(f"layer_idx is {layer_idx!r}: the cache has layers 0 to {kv.num_layers - 1}")
    earlier = _earlier(kv, layer_idx, since)
    snapshot = _take(kv, tables, layer_idx, earlier.colour_order if earlier else ())
    notes: dict[int, list[str]] = {}
    if earlier:
        all_changes = map(_changes, earlier.blocks, snapshot.blocks)
        notes = {index: changes for index, changes in enumerate(all_changes) if changes}
    for block_index in _highlighted(kv, layer_idx, highlight):
        notes.setdefault(block_index, [])
    return snapshot, notes


def _highlighted(kv: KVBlockManager, layer_idx: int, highlight: Collection[int]) -> list[int]:
    """The block indices of the block ids to highlight."""
    if not isinstance(highlight, Collection) or not all(isinstance(block_id, int) for block_id in highlight):
        raise ConfigError(f"highlight is {highlight!s:.60}: give a set of block ids, as the tables show them")
    first, last = layer_idx * kv.num_blocks, (layer_idx + 1) * kv.num_blocks - 1
    for block_id in sorted(highlight):
        if not first <= block_id <= last:
            raise ConfigError(f"highlight shows block {block_id}: layer {layer_idx} has blocks {first} to {last}")
    return [block_id - first for block_id in highlight]


def _earlier(kv: KVBlockManager, layer_idx: int, since: Picture | None) -> Snapshot | None:
    if since is None:
        return None
    then = since.snapshot if isinstance(since, Picture) else None
    if then is None:
        raise ConfigError(f"since is {since!s:.60}: give an earlier picture by block_map or table_map")
    if (then.layer_idx, then.block_size, len(then.blocks)) != (layer_idx, kv.block_size, kv.num_blocks):
        raise ConfigError(
            f"since shows layer {then.layer_idx} with {len(then.blocks)} blocks of {then.block_size} slots, not layer "
            f"{layer_idx} with {kv.num_blocks} of {kv.block_size}: give a picture of the same layer and cache"
        )
    return then


def _take(
    kv: KVBlockManager, tables: Mapping[str, BlockIdsPerLayer], layer_idx: int, colour_order: tuple[str, ...]
) -> Snapshot:
    if not isinstance(tables, Mapping):
        raise ConfigError('tables is not a mapping: give names and tables, such as {"A": session.block_ids_per_layer}')
    rows = tuple((_plain(name), _indices(kv, name, table, layer_idx)) for name, table in tables.items())
    holders: dict[int, list[str]] = {}
    for name, indices in rows:
        for index in indices:
            holders.setdefault(index, []).append(name)
    blocks = tuple(_state(kv, layer_idx, index, tuple(holders.get(index, ()))) for index in range(kv.num_blocks))
    new = dict.fromkeys(name for name, _ in rows if name not in colour_order)
    return Snapshot(layer_idx, kv.block_size, blocks, rows, (*colour_order, *new))


def _indices(kv: KVBlockManager, name: object, table: BlockIdsPerLayer, layer_idx: int) -> tuple[int, ...]:
    """The block indices that a table shows in one layer."""
    if table is None or getattr(table, "freed", False):
        raise BlockError(
            f"session {name!r} holds no blocks: it was freed, or never computed; prefill it or leave it out"
        )
    lists = isinstance(table, Sequence) and all(isinstance(ids, Sequence) for ids in table)
    if not lists or len(table) != kv.num_layers:
        raise ConfigError(f"the table of {name!r} has no list for each layer: give its session.block_ids_per_layer")
    for block_id in table[layer_idx]:
        if block_id // kv.num_blocks != layer_idx or not _in_use(kv, block_id):
            raise BlockError(
                f"the table of {name!r} shows block {block_id}, which is not in use in layer {layer_idx}: "
                "give a live session's block_ids_per_layer"
            )
    return tuple(block_id % kv.num_blocks for block_id in table[layer_idx])


def _in_use(kv: KVBlockManager, block_id: int) -> bool:
    try:
        kv.info(block_id)
    except BlockError:
        return False
    return True


def _state(kv: KVBlockManager, layer_idx: int, block_index: int, names: tuple[str, ...]) -> BlockState:
    block_id = layer_idx * kv.num_blocks + block_index
    if not _in_use(kv, block_id):
        return BlockState(block_index)
    info = kv.info(block_id)
    if len(names) > info.owners:
        raise BlockError(
            f"block {block_id} counts {_count(info.owners, 'owner')}, and the tables of {', '.join(names)} show it: "
            "give each live session once"
        )
    return BlockState(block_index, info.start, info.length, info.owners, info.cached, names)


def _changes(then: BlockState, now: BlockState) -> list[str]:
    """What has happened to a block, in words of a cell's width."""
    if then.free != now.free:
        return ["freed" if now.free else "new"]
    if now.start != then.start or now.length < then.length:  # freed and taken again: a block only fills up
        return ["used anew"]
    notes = []
    if now.length > then.length:
        notes.append("+" + _count(now.length - then.length, "token"))
    if now.owners != then.owners:
        notes.append(f"owners {then.owners}→{now.owners}")
    elif then.names and now.names and then.names != now.names:
        notes.append(f"was {then.names[0]}'s")
    if now.cached != then.cached:
        notes.append("now cached" if now.cached else "not cached")
    return notes


def _entry_notes(
    snapshot: Snapshot, notes: Mapping[int, list[str]], since: Picture | None
) -> dict[tuple[str, int], list[str]]:
    """The notes of each marked entry (name, logical block): those of its block, after the block that it was."""
    earlier = dict(since.snapshot.tables) if since and since.snapshot else {}
    result = {}
    for name, indices in snapshot.tables:
        then = earlier.get(name, ())
        for logical, index in enumerate(indices):
            was = [f"was #{then[logical]}"] if logical < len(then) and then[logical] != index else []
            if was or index in notes:
                result[name, logical] = was + notes.get(index, [])
    return result


# -- words ------------------------------------------------------------------------------------------------------------


def _title(snapshot: Snapshot) -> str:
    held = sum(state.owners > 0 for state in snapshot.blocks)
    free = sum(state.free for state in snapshot.blocks)
    cached = len(snapshot.blocks) - held - free
    counts = [f"{held} held", *([f"{cached} only cached"] if cached else []), f"{free} free"]
    size = f"{len(snapshot.blocks)} blocks of {snapshot.block_size} slots"
    return f"KV cache, layer {snapshot.layer_idx}: {size}; {', '.join(counts)}{_id_rule(snapshot)}"


def _id_rule(snapshot: Snapshot) -> str:
    """Ids count through all layers, the numbers in a picture begin anew in each."""
    first = snapshot.layer_idx * len(snapshot.blocks)
    return f" (block id = {first} + #)" if first else ""


def _count_sessions(snapshot: Snapshot) -> str:
    words = [f"{name}: {snapshot.num_tokens(i)} tokens in blocks {list(i)}" for name, i in snapshot.tables]
    return "; ".join(words)


def _legend(snapshot: Snapshot, marked: bool, compared: bool) -> list[tuple[str, str]]:
    """(what the swatch is, text) of each entry."""
    sessions = [(snapshot.colour(n), f"{n}: {_tokens(snapshot, i)}") for n, i in snapshot.tables]
    return sessions + _marks(snapshot, marked, compared, snapshot.blocks)


def _marks(snapshot: Snapshot, marked: bool, compared: bool, blocks: Collection[BlockState]) -> list[tuple[str, str]]:
    """The legend of what is not a session: other owners, cached blocks, the thick outline."""
    marks = []
    if any(state.num_others for state in blocks):
        marks.append((OTHER_COLOUR, "“other”: a session without a name here"))
    if any(state.cached for state in blocks):
        marks.append(("", "“cached”: the prefix cache knows the block"))
    if marked:
        marks.append(("outline", "changed" if compared else "marked"))
    return marks


def _in_tables(snapshot: Snapshot) -> list[BlockState]:
    return [snapshot.blocks[index] for _, indices in snapshot.tables for index in indices]


def _tokens(snapshot: Snapshot, indices: Sequence[int]) -> str:
    return f"{_count(snapshot.num_tokens(indices), 'token')} in {_count(len(indices), 'block')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _owner_names(state: BlockState, width: float) -> str:
    """As many owners' names as fit, and how many more there are."""
    if state.free:
        return "free"
    if state.owners == 0:
        return "no owner"
    if not state.names:
        return "other"
    for count in range(len(state.names), 0, -1):
        more = f" + {state.owners - count} more" if count < state.owners else ""
        text = " + ".join(state.names[:count]) + more
        if _text_width(text, TEXT) <= width:
            return text
    return _fit(state.names[0], width - _text_width(more, TEXT), TEXT) + more


def _owner_count(state: BlockState) -> str:
    if state.owners == 0:
        return "only cached"
    return _count(state.owners, "owner")


def _description(state: BlockState, snapshot: Snapshot, notes: Sequence[str]) -> str:
    """All that a cell shows, in one sentence: a tooltip, and what a screen reader says."""
    if state.free:
        return "; ".join([f"block #{state.block_index}: free", *notes])
    owners = [_owner_count(state) + (f" ({', '.join(state.names)})" if state.names else "")]
    cached = ["cached"] if state.cached and state.owners else []
    fill = f"block #{state.block_index}: {state.length} of {snapshot.block_size} slots, from position {state.start}"
    return "; ".join([fill, *owners, *cached, *notes])


def _plain(thing: object) -> str:
    """A text that XML can hold, on one line: XML has no place for control characters and halves of surrogates."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in str(thing))


# Fonts differ from machine to machine, so widths are estimates, on the wide side.
def _text_width(text: str, size: float) -> float:
    return sum(map(_character_width, text)) * size


def _character_width(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "mwMW%@→…\ufffd":
        return 0.95
    if character in " .,:;'|!()[]ijltfr":
        return 0.4
    return 0.72 if character.isupper() else 0.62


def _fit(text: str, width: float, size: float) -> str:
    if _text_width(text, size) <= width:
        return text
    while text and _text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"


def _wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines of at most `width`; a word that is longer is cut."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if _text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(_fit(word, width, size))
    return [line for line in lines if line] or [""]


# -- where things are -------------------------------------------------------------------------------------------------


def _cells_width(count: int) -> int:
    return count * (CELL + GAP) - GAP


def _cell_height(notes: Iterable[Sequence[str]]) -> int:
    """Of every cell of a picture: room for the longest note in it."""
    return LINE_HEIGHT * (3 + max(map(len, notes), default=0)) + BAR + 2 * PAD


def _shown(snapshot: Snapshot, notes: Collection[int], columns: int) -> tuple[BlockState, ...]:
    """All blocks, but for the free ones at the end of a large pool."""
    if len(snapshot.blocks) <= FOLDED:
        return snapshot.blocks
    last = max((s.block_index for s in snapshot.blocks if not s.free or s.block_index in notes), default=0)
    return snapshot.blocks[: (last // columns + 1) * columns]


def _strips_in_row(num_tables: int, in_row: int, columns: int) -> int:
    """How many tables stand side by side: few stand one above the other, so that a column is one logical block."""
    if num_tables <= 4:
        return 1
    return max(1, (_cells_width(columns) + 4 * GAP) // (_cells_width(in_row) + 4 * GAP))


class _Sheet:
    """A picture in the making, filled from the top; `y` is where the next thing goes."""

    def __init__(self, inner_width: int) -> None:
        self.inner = inner_width
        self.y = MARGIN
        self.root = ElementTree.Element("svg", {"font-family": "Helvetica, Arial, sans-serif"})

    def heading(self, text: str) -> None:
        for line in _wrapped(text, self.inner, TEXT + 1):
            _text(self.root, (MARGIN, self.y + TEXT), line, size=TEXT + 1)
            self.y += LINE_HEIGHT + 2
        self.y += 2

    def line(self, text: str, colour: str) -> None:
        for line in _wrapped(text, self.inner, TEXT):
            _text(self.root, (MARGIN, self.y + TEXT), line, colour=colour)
            self.y += LINE_HEIGHT

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Swatches with text, as many in a line as fit."""
        x = MARGIN
        for number, (swatch, text) in enumerate(entries):
            text = _fit(text, self.inner - 18, TEXT)
            width = (18 if swatch else 0) + ceil(_text_width(text, TEXT))
            if number and x + width > MARGIN + self.inner:
                x, self.y = MARGIN, self.y + LINE_HEIGHT + 4
            _draw_swatch(self.root, x, self.y + 1, swatch)
            _text(self.root, (x + (18 if swatch else 0), self.y + TEXT), text)
            x += width + 3 * GAP
        self.y += LINE_HEIGHT + GAP + 2 if x > MARGIN else 0

    def picture(self, title: str, snapshot: Snapshot | None) -> Picture:
        """The finished picture. title: what a screen reader says."""
        width, height = self.inner + 2 * MARGIN, self.y - GAP + MARGIN
        sized = {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(width),
            "height": str(height),
            "viewBox": f"0 0 {width} {height}",
            "role": "img",
            "style": "max-width: 100%",
        }
        self.root.attrib = sized | self.root.attrib
        background = ElementTree.Element("rect", {"width": str(width), "height": str(height), "fill": "white"})
        heading = ElementTree.Element("title")
        heading.text = title
        self.root[:0] = [heading, background]  # white in a dark theme too: all text is dark
        return Picture(ElementTree.tostring(self.root, encoding="unicode"), width, height, snapshot)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _add(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    """A child with attributes in the order given; `stroke_width` becomes stroke-width."""
    named = {
        key.rstrip("_").replace("_", "-"): _number(v) if isinstance(v, float) else str(v)
        for key, v in attributes.items()
    }
    return ElementTree.SubElement(parent, tag, named)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(
    parent: ElementTree.Element,
    place: tuple[float, float],
    text: str,
    *,
    size: int = TEXT,
    colour: str = INK,
    weight: str = "normal",
    anchor: str = "start",
) -> None:
    extra = {"font_weight": weight} if weight != "normal" else {}
    extra |= {"text_anchor": anchor} if anchor != "start" else {}
    _add(parent, "text", x=place[0], y=place[1], font_size=size, fill=colour, **extra).text = text


def _draw_swatch(parent: ElementTree.Element, x: float, y: float, swatch: str) -> None:
    if swatch == "outline":
        _add(parent, "rect", x=x + 1, y=y + 1, width=10, height=10, fill="white", stroke=INK, stroke_width=3)
    elif swatch:
        _add(parent, "rect", x=x, y=y, width=12, height=12, fill=swatch)


def _draw_block(
    parent: ElementTree.Element,
    place: tuple[int, int],
    height: int,
    state: BlockState,
    snapshot: Snapshot,
    notes: Sequence[str] | None,
) -> None:
    """One cell. notes: what has changed, [] for only a thick outline, None for neither."""
    x, y = place
    group = _add(parent, "g", class_="block", data_block=state.block_index, data_marked=int(notes is not None))
    _add(group, "title").text = _description(state, snapshot, notes or [])
    line = {"stroke": LINE, "stroke_width": 1}
    if notes is not None:
        line = {"stroke": INK, "stroke_width": 3}
    dashes = {"stroke_dasharray": "4 3"} if state.owners == 0 and notes is None else {}
    _add(group, "rect", x=x, y=y, width=CELL, height=height, rx=4, fill="white", **line, **dashes)
    left, right, baseline = x + PAD, x + CELL - PAD, y + PAD + TEXT - 1
    colour = FAINT_INK if state.owners == 0 else INK
    _text(group, (left, baseline), f"#{state.block_index}", size=TEXT + 1, colour=colour, weight="bold")
    if not state.free:
        _text(group, (right, baseline), f"{state.length} of {snapshot.block_size}", colour=colour, anchor="end")
        _draw_slots(group, (left, y + PAD + LINE_HEIGHT + 1), state, snapshot)
    baseline += LINE_HEIGHT + BAR + 3
    _text(group, (left, baseline), _owner_names(state, CELL - 2 * PAD), colour=colour)
    if state.cached and state.owners:
        _text(group, (right, baseline + LINE_HEIGHT), "cached", size=TEXT - 1, colour=FAINT_INK, anchor="end")
    if not state.free:
        _text(group, (left, baseline + LINE_HEIGHT), _owner_count(state), colour=colour)
    for number, note in enumerate(notes or [], start=2):
        at = (left, baseline + number * LINE_HEIGHT)
        _text(group, at, _fit(note, CELL - 2 * PAD, TEXT * BOLD), colour=colour, weight="bold")


def _draw_slots(parent: ElementTree.Element, place: tuple[int, int], state: BlockState, snapshot: Snapshot) -> None:
    """The slots of a block: filled ones in the colours of its owners, one band each, empty ones pale."""
    x, y = place
    width = CELL - 2 * PAD
    _add(parent, "rect", class_="empty", x=x, y=y, width=width, height=BAR, fill=EMPTY)
    colours = [snapshot.colour(name) for name in state.names] + [OTHER_COLOUR] * (state.num_others > 0)
    colours = colours[:BANDS] or [CACHED_COLOUR]
    for number, colour in enumerate(colours if state.length else ()):
        band = {"x": x, "y": y + number * BAR / len(colours), "height": BAR / len(colours)}
        _add(parent, "rect", class_="filled", **band, width=width * state.length / snapshot.block_size, fill=colour)
    if snapshot.block_size <= SLOTS_DRAWN:
        steps = (x + width * slot / snapshot.block_size for slot in range(1, snapshot.block_size))
        path = " ".join(f"M{_number(step)} {y}v{BAR}" for step in steps)
        _add(parent, "path", class_="slots", d=path, stroke="white", stroke_width=2)
    _add(parent, "rect", x=x, y=y, width=width, height=BAR, fill="none", stroke=LINE)


def _draw_table(
    parent: ElementTree.Element,
    place: tuple[int, int],
    size: tuple[int, int],
    name: str,
    indices: Sequence[int],
    snapshot: Snapshot,
    notes: Mapping[tuple[str, int], list[str]],
) -> int:
    """One session's block table, `size` = (entries in a row, height of a cell); returns where it ends."""
    (x, y), (in_row, height) = place, size
    _draw_swatch(parent, x, y + 1, snapshot.colour(name))
    tokens = f": {_tokens(snapshot, indices)}"
    size_of_name = (TEXT + 1) * BOLD
    short = _fit(name, _cells_width(in_row) - 18 - _text_width(tokens, size_of_name), size_of_name)
    _text(parent, (x + 18, y + TEXT), short + tokens, size=TEXT + 1, weight="bold")
    y += LINE_HEIGHT + GAP
    for logical, index in enumerate(indices):
        row, column = divmod(logical, in_row)
        left, top = x + column * (CELL + GAP), y + row * (height + 30 + 2 * GAP)
        group = _add(parent, "g", class_="entry", data_session=name, data_logical=logical)
        _draw_arrow(group, left, top, f"logical {logical}")
        _draw_block(group, (left, top + 30), height, snapshot.blocks[index], snapshot, notes.get((name, logical)))
    rows = -(-len(indices) // in_row)
    return y + rows * (height + 30 + 2 * GAP)


def _draw_arrow(parent: ElementTree.Element, x: int, y: int, text: str) -> None:
    """A logical block, and an arrow from it down to the cell 30 pixels below its top."""
    middle = x + CELL // 2
    _add(parent, "rect", x=x + 14, y=y, width=CELL - 28, height=16, rx=8, fill=EMPTY)
    _text(parent, (middle, y + 12), text, anchor="middle")
    _add(parent, "path", d=f"M{middle} {y + 16}v7", stroke=INK, stroke_width=1.5)
    _add(parent, "path", d=f"M{middle - 4} {y + 22}h8l-4 6z", fill=INK)


def _embed(parent: ElementTree.Element, picture: Picture, x: int, y: int) -> None:
    """Put a finished picture into another one."""
    group = _add(parent, "g", class_="moment", transform=f"translate({x} {y})")
    inside = ElementTree.fromstring(picture.svg)
    for element in inside.iter():
        element.tag = element.tag.rpartition("}")[2]  # the namespace is the whole picture's, written once
    group.extend(inside)
