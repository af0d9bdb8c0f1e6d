"""The sheet that `blocks` draws on, as SVG: what a block looks like, where things are, and how wide a text is."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, hypot
from xml.etree import ElementTree

# Okabe and Ito's colours, which people with the common kinds of colour blindness can tell apart; those that differ most
# come first. Paul Tol's wine stands in the place of their yellow, which cannot be seen on white.
OWNER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#882255", "#000000")
OTHER_COLOUR, CACHED_COLOUR = "#8C8C8C", "#C8C8C8"  # an owner without a name here; a block without any owner
INK, FAINT_INK, LINE, EMPTY = "#1A1A1A", "#595959", "#8C8C8C", "#ECEFF1"

WIDTH = 840  # a little less than the outputs of Jupyter Lab have in a window of 1280 pixels
MARGIN, GAP, MAX_COLUMNS = 8, 5, 8
CELL, PAD, BAR = 96, 3, 14  # a block's width, the room around what is in it, and the height of its slots
BELOW = 4  # what its last line takes below the baseline, so that it keeps off the frame
TEXT, LINE_HEIGHT = 12, 15
SWATCH = 18  # a swatch and the room behind it
WIDEST_HEADING = 260  # of a table's heading, that its column is widened for
BOLD = 1.15  # how much wider bold text is
SLOTS_DRAWN = 16  # larger blocks get a bar without slots, which would be a few pixels wide
BANDS = 4  # most colours in a block with many owners; its text says how many there are


# -- what is drawn --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block at one moment. names: of the owners that the picture knows, at most `owners` of them."""

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


# -- words --------------------------------------------------------------------


def tokens_in(snapshot: Snapshot, indices: Sequence[int]) -> str:
    return f"{counted(snapshot.num_tokens(indices), 'token')} in {counted(len(indices), 'block')}"


def counted(number: int, noun: str) -> str:
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
        if text_width(text, TEXT) <= width:
            return text
    return fit(state.names[0], width - text_width(more, TEXT), TEXT) + more


def _owner_count(state: BlockState) -> str:
    if state.owners == 0:
        return "only cached"
    return counted(state.owners, "owner")


def _description(state: BlockState, snapshot: Snapshot, notes: Sequence[str]) -> str:
    """All that a cell shows, in one sentence: a tooltip, and what a screen reader says."""
    if state.free:
        return "; ".join([f"block #{state.block_index}: free", *notes])
    owners = [_owner_count(state) + (f" ({', '.join(state.names)})" if state.names else "")]
    cached = ["cached"] if state.cached and state.owners else []
    fill = f"block #{state.block_index}: {state.length} of {snapshot.block_size} slots, from position {state.start}"
    return "; ".join([fill, *owners, *cached, *notes])


def plain(thing: object) -> str:
    """A text that XML can hold, on one line: XML has no place for control characters and halves of surrogates."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in str(thing))


def text_width(text: str, size: float) -> float:
    return sum(map(_character_width, text)) * size


def _character_width(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "mwMW%@→…\ufffd":
        return 0.95
    if character in " .,:;'|!()[]ijltfr":
        return 0.4
    return 0.72 if character.isupper() else 0.62


def fit(text: str, width: float, size: float) -> str:
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines of at most `width`; a longer word is cut."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(fit(word, width, size))
    return [line for line in lines if line] or [""]


# -- where things are --------------------------------------------------------------------


def cells_width(count: int) -> int:
    return count * (CELL + GAP) - GAP


def cell_height(cells: Iterable[tuple[BlockState, Sequence[str]]]) -> int:
    """The height of every cell of a picture, with room for the most lines. cells: (block, its notes) of each."""
    extra = max((_said_cached(state) + len(notes) for state, notes in cells), default=0)
    return LINE_HEIGHT * (3 + extra) + BAR + 2 * PAD + BELOW


def _said_cached(state: BlockState) -> bool:
    """Whether a line says that the block is cached; one without an owner says so in place of their number."""
    return state.cached and state.owners > 0


class Sheet:
    """A picture in the making, filled from the top; `y` is where the next thing goes."""

    def __init__(self, inner_width: int) -> None:
        self.inner = inner_width
        self.y = MARGIN
        self.root = ElementTree.Element("svg", {"font-family": "Helvetica, Arial, sans-serif"})

    def heading(self, text: str) -> None:
        for line in wrapped(text, self.inner, TEXT + 1):
            draw_text(self.root, (MARGIN, self.y + TEXT), line, size=TEXT + 1)
            self.y += LINE_HEIGHT + 2
        self.y += 2

    def line(self, text: str, colour: str) -> None:
        for line in wrapped(text, self.inner, TEXT):
            draw_text(self.root, (MARGIN, self.y + TEXT), line, colour=colour)
            self.y += LINE_HEIGHT

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Swatches with text, as many in a line as fit."""
        x = MARGIN
        for number, (swatch, text) in enumerate(entries):
            text = fit(text, self.inner - 18, TEXT)
            width = (18 if swatch else 0) + ceil(text_width(text, TEXT))
            if number and x + width > MARGIN + self.inner:
                x, self.y = MARGIN, self.y + LINE_HEIGHT + 4
            _draw_swatch(self.root, x, self.y + 1, swatch)
            draw_text(self.root, (x + (18 if swatch else 0), self.y + TEXT), text)
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


# -- shapes --------------------------------------------------------------------


def draw_shape(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    """A child with attributes in the order given; `stroke_width` becomes stroke-width."""
    named = {
        key.rstrip("_").replace("_", "-"): _number(v) if isinstance(v, float) else str(v)
        for key, v in attributes.items()
    }
    return ElementTree.SubElement(parent, tag, named)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def draw_text(
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
    draw_shape(parent, "text", x=place[0], y=place[1], font_size=size, fill=colour, **extra).text = text


def draw_arrow_to(
    parent: ElementTree.Element, start: tuple[float, float], end: tuple[float, float], colour: str
) -> None:
    """A straight arrow, its head at `end`."""
    (x0, y0), (x1, y1) = start, end
    length = hypot(x1 - x0, y1 - y0)
    along = ((x1 - x0) / length, (y1 - y0) / length)
    neck = (x1 - 9 * along[0], y1 - 9 * along[1])
    sides = [(neck[0] - side * along[1], neck[1] + side * along[0]) for side in (4, -4)]
    line = f"M{_number(x0)} {_number(y0)}L{_number(neck[0])} {_number(neck[1])}"
    head = "L".join(f"{_number(x)} {_number(y)}" for x, y in [end, *sides])
    draw_shape(parent, "path", class_="arrow", d=line, stroke=colour, stroke_width=1.5)
    draw_shape(parent, "path", d=f"M{head}z", fill=colour)


def _draw_swatch(parent: ElementTree.Element, x: float, y: float, swatch: str) -> None:
    if swatch == "outline":
        draw_shape(parent, "rect", x=x + 1, y=y + 1, width=10, height=10, fill="white", stroke=INK, stroke_width=3)
    elif swatch:
        draw_shape(parent, "rect", x=x, y=y, width=12, height=12, fill=swatch)


def draw_block(
    parent: ElementTree.Element,
    place: tuple[int, int],
    height: int,
    state: BlockState,
    snapshot: Snapshot,
    notes: Sequence[str],
    outlined: bool,
) -> None:
    """One cell. notes: what has changed, in words of a cell's width."""
    x, y = place
    group = draw_shape(parent, "g", class_="block", data_block=state.block_index, data_marked=int(outlined))
    draw_shape(group, "title").text = _description(state, snapshot, notes)
    line = {"stroke": LINE, "stroke_width": 1}
    if outlined:
        line = {"stroke": INK, "stroke_width": 3}
    dashes = {"stroke_dasharray": "4 3"} if state.owners == 0 and not outlined else {}
    draw_shape(group, "rect", x=x, y=y, width=CELL, height=height, rx=4, fill="white", **line, **dashes)
    left, right, baseline = x + PAD, x + CELL - PAD, y + PAD + TEXT - 1
    colour = FAINT_INK if state.owners == 0 else INK
    draw_text(group, (left, baseline), f"#{state.block_index}", size=TEXT + 1, colour=colour, weight="bold")
    if not state.free:
        draw_text(group, (right, baseline), f"{state.length} of {snapshot.block_size}", colour=colour, anchor="end")
        _draw_slots(group, (left, y + PAD + LINE_HEIGHT + 1), state, snapshot)
    baseline += LINE_HEIGHT + BAR + 3
    draw_text(group, (left, baseline), _owner_names(state, CELL - 2 * PAD), colour=colour)
    if not state.free:
        draw_text(group, (left, baseline + LINE_HEIGHT), _owner_count(state), colour=colour)
    if _said_cached(state):
        draw_text(group, (left, baseline + 2 * LINE_HEIGHT), "cached", colour=FAINT_INK)
    for number, note in enumerate(notes, start=2 + _said_cached(state)):
        at = (left, baseline + number * LINE_HEIGHT)
        draw_text(group, at, fit(note, CELL - 2 * PAD, TEXT * BOLD), colour=colour, weight="bold")


def _draw_slots(parent: ElementTree.Element, place: tuple[int, int], state: BlockState, snapshot: Snapshot) -> None:
    """The slots of a block: filled ones in the colours of its owners, one band each, empty ones pale."""
    x, y = place
    width = CELL - 2 * PAD
    draw_shape(parent, "rect", class_="empty", x=x, y=y, width=width, height=BAR, fill=EMPTY)
    colours = [snapshot.colour(name) for name in state.names] + [OTHER_COLOUR] * (state.num_others > 0)
    colours = colours[:BANDS] or [CACHED_COLOUR]
    for number, colour in enumerate(colours if state.length else ()):
        band = {"x": x, "y": y + number * BAR / len(colours), "height": BAR / len(colours)}
        draw_shape(
            parent, "rect", class_="filled", **band, width=width * state.length / snapshot.block_size, fill=colour
        )
    if snapshot.block_size <= SLOTS_DRAWN:
        steps = (x + width * slot / snapshot.block_size for slot in range(1, snapshot.block_size))
        path = " ".join(f"M{_number(step)} {y}v{BAR}" for step in steps)
        draw_shape(parent, "path", class_="slots", d=path, stroke="white", stroke_width=2)
    draw_shape(parent, "rect", x=x, y=y, width=width, height=BAR, fill="none", stroke=LINE)


def table_heading_width(name: str, indices: Sequence[int], snapshot: Snapshot) -> int:
    """What the heading of a session's block table takes."""
    return SWATCH + ceil(text_width(f"{name}: {tokens_in(snapshot, indices)}", (TEXT + 1) * BOLD))


def draw_table(
    parent: ElementTree.Element,
    place: tuple[int, int],
    size: tuple[int, int, int],
    name: str,
    indices: Sequence[int],
    snapshot: Snapshot,
    notes: Mapping[tuple[str, int], list[str]],
) -> int:
    """One session's block table, `size` = (entries in a row, height of a cell, width); returns where it ends.

    notes: of the entries with a thick outline, by the session's name and the number of the logical block.
    """
    (x, y), (in_row, height, width) = place, size
    _draw_swatch(parent, x, y + 1, snapshot.colour(name))
    tokens = f": {tokens_in(snapshot, indices)}"
    size_of_name, room = (TEXT + 1) * BOLD, width - SWATCH
    if text_width(name + tokens, size_of_name) > room:
        tokens = tokens.split(" in ")[0]  # the blocks are drawn: the name matters more
    short = fit(name, room - text_width(tokens, size_of_name), size_of_name)
    draw_text(parent, (x + SWATCH, y + TEXT), short + tokens, size=TEXT + 1, weight="bold")
    y += LINE_HEIGHT + GAP
    for logical, index in enumerate(indices):
        row, column = divmod(logical, in_row)
        left, top = x + column * (CELL + GAP), y + row * (height + 30 + 2 * GAP)
        group = draw_shape(parent, "g", class_="entry", data_session=name, data_logical=logical)
        _draw_arrow(group, left, top, f"logical {logical}")
        entry = (name, logical)
        words, state = notes.get(entry, []), snapshot.blocks[index]
        draw_block(group, (left, top + 30), height, state, snapshot, words, entry in notes)
    rows = -(-len(indices) // in_row)
    return y + rows * (height + 30 + 2 * GAP)


def _draw_arrow(parent: ElementTree.Element, x: int, y: int, text: str) -> None:
    """A logical block, and an arrow from it down to the cell 30 pixels below its top."""
    middle = x + CELL // 2
    draw_shape(parent, "rect", x=x + 14, y=y, width=CELL - 28, height=16, rx=8, fill=EMPTY)
    draw_text(parent, (middle, y + 12), text, anchor="middle")
    draw_shape(parent, "path", d=f"M{middle} {y + 16}v7", stroke=INK, stroke_width=1.5)
    draw_shape(parent, "path", d=f"M{middle - 4} {y + 22}h8l-4 6z", fill=INK)


def embed(parent: ElementTree.Element, picture: Picture, x: int, y: int) -> None:
    """Put a finished picture into another one."""
    group = draw_shape(parent, "g", class_="moment", transform=f"translate({x} {y})")
    inside = ElementTree.fromstring(picture.svg)
    for element in inside.iter():
        element.tag = element.tag.rpartition("}")[2]  # the namespace is the whole picture's, written once
    group.extend(inside)
