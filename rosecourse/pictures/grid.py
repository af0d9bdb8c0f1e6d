"""Grids of labelled cells, with arrows from cell to cell: what every picture of blocks and tables is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil
from typing import NamedTuple

from .colours import EMPTY, FAINT_INK, INK, LINE, USED, text_on
from .sheet import BOLD, GAP, LINE_HEIGHT, MARGIN, TEXT, WIDTH, Picture, fit, shape, text, text_width, wrapped

PAD, BAR, BETWEEN = 5, 12, 3  # the room around a text, the height of a bar, the room between cells
SWATCH = 18  # a swatch and the room behind it
NARROWEST, WIDEST = 24, 200  # of a column beside others
FOR_ARROWS = 70  # the width of a column without a cell
LEAST = 256  # of a picture
SLOTS_DRAWN = 16  # more of them would be a few pixels wide each


class Bar(NamedTuple):
    """The slots of a block above a cell's text. colours: one band each, as long as slots are filled."""

    filled: int
    slots: int
    colours: Sequence[str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. A cell without a fill is a label, and has no frame.

    text: lines; several of them begin on the left, the first in bold. mark: the colour of a thick outline. faint:
    nobody reads it. left: the text begins on the left. swatch: the colour of a square before it.
    """

    text: str = ""
    fill: str = ""
    mark: str = ""
    faint: bool = False
    left: bool = False
    swatch: str = ""
    bar: Bar | None = None

    @property
    def width(self) -> int:
        longest = ceil(max(text_width(line, TEXT * BOLD) for line in self.text.split("\n")))
        return max(2 * PAD + SWATCH * bool(self.swatch) + longest, NARROWEST)

    @property
    def height(self) -> int:
        return (self.text.count("\n") + 1) * LINE_HEIGHT + (BAR + 2 if self.bar else 0) + 2 * PAD - 2

    def draw(self, x: int, y: int, width: int, height: int) -> str:
        """Its elements, in a rectangle of this size."""
        parts, edge = [], bool(self.mark)
        if self.fill:
            box = {"x": x + edge, "y": y + edge, "width": width - 2 * edge, "height": height - 2 * edge}
            parts.append(shape("rect", **box, fill=self.fill, stroke=self.mark or LINE, stroke_width=3 if edge else 1))
        parts.append(_swatch(x, y + PAD, self.swatch))
        top, lines = y + PAD - 1, self.text.split("\n") if self.text else []
        if self.bar:
            parts.append(_bar(x + PAD, top, width - 2 * PAD, self.bar))
            top += BAR + 2
        left, before = self.left or len(lines) > 1, SWATCH if self.swatch else PAD
        start, room = (x + before, width - before - PAD + 2) if left else (x + width / 2, width - 4)
        style = {"fill": FAINT_INK if self.faint else text_on(self.fill or USED)}
        style |= {} if left else {"text_anchor": "middle"}
        for number, words in enumerate(lines):
            bold = number == 0 if len(lines) > 1 else bool(self.mark or self.swatch)
            weight = {"font_weight": "bold"} if bold else {}
            told = fit(words, room, TEXT * (BOLD if bold else 1))
            parts.append(text(start, top + TEXT - 1 + number * LINE_HEIGHT, told, **style, **weight))
        return "".join(parts)


def label(words: str, swatch: str = "", faint: bool = False) -> Cell:
    return Cell(words, left=True, swatch=swatch, faint=faint)


def heads(words: Sequence[object]) -> list[Cell]:
    """Pale words above columns."""
    return [Cell(str(word), faint=True) for word in words]


class Arrow(NamedTuple):
    """From the right of one cell to the left of another, each (row, column)."""

    start: tuple[int, int]
    end: tuple[int, int]
    colour: str = INK


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of cells; None leaves a place empty. width: of every column, else each is as wide as its widest cell."""

    rows: Sequence[Sequence[Cell | None]]
    arrows: Sequence[Arrow] = ()
    width: int | None = None

    def edges(self) -> list[int]:
        """Where each column begins, and where the next one after the last would."""
        found, columns = [MARGIN], max(map(len, self.rows))
        most = WIDEST if columns > 1 else WIDTH - 2 * MARGIN
        for column in range(columns):
            cells = [row[column] for row in self.rows if column < len(row)]
            widest = max((cell.width for cell in cells if cell), default=FOR_ARROWS)
            found.append(found[-1] + (self.width or min(widest, most)) + BETWEEN)
        return found

    def draw(self, y: int) -> tuple[str, int]:
        """Its elements from the height y, and the height where they end."""
        parts, edges, middles = [], self.edges(), []
        for number, row in enumerate(self.rows):
            height = max(cell.height for cell in row if cell)
            middles.append(y + height / 2)
            for column, cell in enumerate(row):
                if cell:
                    inside = cell.draw(edges[column], y, edges[column + 1] - edges[column] - BETWEEN, height)
                    kind = "cell marked" if cell.mark else "cell" if cell.fill else "label"
                    parts.append(shape("g", inside, class_=kind, data_row=number, data_column=column))
            y += height + BETWEEN
        for (row_0, column_0), (row_1, column_1), colour in self.arrows:
            start, end = edges[column_0 + 1], edges[column_1] - BETWEEN
            line = f"M{start} {middles[row_0]:g}L{end - 9} {middles[row_1]:g}"
            parts.append(shape("path", class_="arrow", d=line, stroke=colour, stroke_width=1.5))
            parts.append(shape("path", d=f"M{end} {middles[row_1]:g}l-9 4v-8z", fill=colour))
        return shape("g", "".join(parts), class_="grid"), y + GAP


def beside(left: Sequence[Sequence[Cell]], right: Sequence[Sequence[Cell]]) -> list[list[Cell | None]]:
    """Rows on the left and on the right, with a column for arrows between them."""
    column = max(map(len, left)) + bool(right)
    pairs = zip_longest(left, right, fillvalue=())
    return [[*row, *[None] * (column - len(row)), *other] for row, other in pairs]


def draw_grids(
    heading: str, grids: Sequence[Grid], legend: Sequence[tuple[str, str]], said: str, snapshot: object = None
) -> Picture:
    """A picture of grids, one above the other.

    legend: (swatch, text) of each entry; a swatch is a colour, "outline", or "" for none. said: the alternative text.
    """
    keys = [SWATCH + ceil(text_width(words, TEXT)) for _, words in legend]
    inner = min(max(LEAST, *keys, *(grid.edges()[-1] - BETWEEN - MARGIN for grid in grids)), WIDTH - 2 * MARGIN)
    parts, y = [], MARGIN
    for line in wrapped(heading, inner, TEXT + 1):
        parts.append(text(MARGIN, y + TEXT, line, TEXT + 1))
        y += LINE_HEIGHT + 2
    x = MARGIN
    for (swatch, words), width in zip(legend, keys, strict=True):
        if x > MARGIN and x + width > MARGIN + inner:
            x, y = MARGIN, y + LINE_HEIGHT + 4
        before = SWATCH if swatch else 0
        parts.append(_swatch(x, y + 3, swatch) + text(x + before, y + 2 + TEXT, fit(words, inner - before, TEXT)))
        x += width + 3 * GAP
    y += LINE_HEIGHT + 2 * GAP if legend else GAP
    for grid in grids:
        drawn, y = grid.draw(y)
        parts.append(drawn)
    return Picture("".join(parts), inner + 2 * MARGIN, y - GAP + MARGIN, said, snapshot)


def _swatch(x: float, y: float, swatch: str) -> str:
    if swatch == "outline":
        return shape("rect", x=x + 1, y=y + 1, width=10, height=10, fill="white", stroke=INK, stroke_width=3)
    return shape("rect", x=x, y=y, width=12, height=12, fill=swatch) if swatch else ""


def _bar(x: int, y: int, width: int, bar: Bar) -> str:
    parts = [shape("rect", class_="slots", x=x, y=y, width=width, height=BAR, fill=EMPTY, stroke=LINE)]
    for number, colour in enumerate(bar.colours if bar.filled else ()):
        band = {"y": y + number * BAR / len(bar.colours), "height": BAR / len(bar.colours)}
        parts.append(shape("rect", class_="filled", x=x, **band, width=width * bar.filled / bar.slots, fill=colour))
    if bar.slots <= SLOTS_DRAWN:
        lines = " ".join(f"M{x + width * slot / bar.slots:g} {y}v{BAR}" for slot in range(1, bar.slots))
        parts.append(shape("path", class_="lines", d=lines, stroke=USED, stroke_width=2))
    return "".join(parts)
