"""Grids of labelled cells, with arrows from cell to cell: what every picture of blocks and tables is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple
from xml.etree import ElementTree

from .colours import text_on
from .sheet import (
    BOLD,
    EMPTY,
    FAINT_INK,
    GAP,
    INK,
    LINE,
    LINE_HEIGHT,
    MARGIN,
    SWATCH,
    TEXT,
    USED,
    WIDTH,
    Picture,
    Sheet,
    draw_shape,
    draw_swatch,
    draw_text,
    fit,
    text_width,
)

PAD, BAR, BETWEEN = 5, 12, 3  # the room around a text, the height of a bar, the room between cells
NARROWEST, WIDEST = 24, 200  # of a column beside others
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
    nobody reads it. left: the text begins on the left. swatch: the colour of a square before it. title: a tooltip.
    least: pixels of its width.
    """

    text: str = ""
    fill: str = ""
    mark: str = ""
    faint: bool = False
    left: bool = False
    swatch: str = ""
    bar: Bar | None = None
    title: str = ""
    least: int = NARROWEST

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @property
    def width(self) -> int:
        text = ceil(max(text_width(line, TEXT * BOLD) for line in self.lines))
        return max(2 * PAD + SWATCH * bool(self.swatch) + text, self.least)

    @property
    def height(self) -> int:
        return len(self.lines) * LINE_HEIGHT + (BAR + 2 if self.bar else 0) + 2 * PAD - 2


def label(text: str, swatch: str = "", faint: bool = False) -> Cell:
    return Cell(text, left=True, swatch=swatch, faint=faint)


APART = Cell(least=70)  # where arrows are drawn


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
        found, columns = [0], max(map(len, self.rows))
        most = WIDEST if columns > 1 else WIDTH - 2 * MARGIN
        for column in range(columns):
            cells = [row[column] for row in self.rows if column < len(row)]
            widest = max(cell.width if cell else 0 for cell in cells)
            found.append(found[-1] + (self.width or min(widest, most)) + BETWEEN)
        return found

    def draw(self, sheet: Sheet) -> None:
        group = draw_shape(sheet.root, "g", class_="grid")
        edges, middles = [MARGIN + edge for edge in self.edges()], []
        for number, row in enumerate(self.rows):
            height = max(cell.height for cell in row if cell)
            middles.append(sheet.y + height / 2)
            for column, cell in enumerate(row):
                if cell:
                    size = (edges[column + 1] - edges[column] - BETWEEN, height)
                    _draw_cell(group, (number, column), (edges[column], sheet.y), size, cell)
            sheet.y += height + BETWEEN
        for (row_0, column_0), (row_1, column_1), colour in self.arrows:
            start, end = edges[column_0 + 1], edges[column_1] - BETWEEN
            line = f"M{start} {middles[row_0]:g}L{end - 9} {middles[row_1]:g}"
            draw_shape(group, "path", class_="arrow", d=line, stroke=colour, stroke_width=1.5)
            draw_shape(group, "path", d=f"M{end} {middles[row_1]:g}l-9 4v-8z", fill=colour)
        sheet.y += GAP


def draw_grids(
    heading: str, grids: Sequence[Grid], legend: Sequence[tuple[str, str]], said: str, snapshot: object = None
) -> Picture:
    """A picture of grids, one above the other. said: the alternative text. legend: (swatch, text) of each entry."""
    keys = [SWATCH + ceil(text_width(text, TEXT)) for _, text in legend]
    sheet = Sheet(min(max(LEAST, *keys, *(grid.edges()[-1] - BETWEEN for grid in grids)), WIDTH - 2 * MARGIN))
    sheet.heading(heading)
    sheet.legend(legend)
    for grid in grids:
        grid.draw(sheet)
    return sheet.picture(said, snapshot)


def _draw_cell(
    parent: ElementTree.Element, at: tuple[int, int], place: tuple[int, int], size: tuple[int, int], cell: Cell
) -> None:
    (x, y), (width, height), marked = place, size, 2 * bool(cell.mark)
    kind = "cell marked" if cell.mark else "cell" if cell.fill else "label"
    group = draw_shape(parent, "g", class_=kind, data_row=at[0], data_column=at[1])
    if cell.title:
        draw_shape(group, "title").text = cell.title
    if cell.fill:
        line = {"stroke": cell.mark, "stroke_width": 3} if cell.mark else {"stroke": LINE}
        box = {"x": x + marked / 2, "y": y + marked / 2, "width": width - marked, "height": height - marked}
        draw_shape(group, "rect", **box, fill=cell.fill, **line)
    draw_swatch(group, x, y + PAD, cell.swatch)
    top, before = y + PAD - 1, SWATCH if cell.swatch else PAD
    if cell.bar:
        _draw_bar(group, (x + PAD, top), width - 2 * PAD, cell.bar)
        top += BAR + 2
    colour = FAINT_INK if cell.faint else text_on(cell.fill or USED)
    left = cell.left or len(cell.lines) > 1
    for number, told in enumerate(cell.lines if cell.text else ()):
        bold = bool(cell.mark or cell.swatch) if len(cell.lines) == 1 else number == 0
        start = (x + before if left else x + width / 2, top + TEXT - 1 + number * LINE_HEIGHT)
        said = fit(told, width - before - PAD + 2 if left else width - 4, TEXT * (BOLD if bold else 1))
        weight, anchor = "bold" if bold else "normal", "start" if left else "middle"
        draw_text(group, start, said, colour=colour, weight=weight, anchor=anchor)


def _draw_bar(parent: ElementTree.Element, place: tuple[int, int], width: int, bar: Bar) -> None:
    x, y = place
    draw_shape(parent, "rect", class_="slots", x=x, y=y, width=width, height=BAR, fill=EMPTY, stroke=LINE)
    for number, colour in enumerate(bar.colours if bar.filled else ()):
        band = {"y": y + number * BAR / len(bar.colours), "height": BAR / len(bar.colours)}
        filled = width * bar.filled / bar.slots
        draw_shape(parent, "rect", class_="filled", x=x, **band, width=filled, fill=colour)
    if bar.slots <= SLOTS_DRAWN:
        lines = " ".join(f"M{x + width * slot / bar.slots:g} {y}v{BAR}" for slot in range(1, bar.slots))
        draw_shape(parent, "path", class_="lines", d=lines, stroke=USED, stroke_width=2)
