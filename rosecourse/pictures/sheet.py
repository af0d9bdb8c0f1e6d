"""The sheet that pictures are drawn on, as SVG: its colours, its heading and legend, and how wide a text is."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from xml.etree import ElementTree

from ..errors import ConfigError

# What each colour means, in every picture of blocks and tables. The sheet is white in a dark theme too.
# Sessions: Okabe and Ito's colours, which people with the common kinds of colour blindness can tell apart; those that
# differ most come first. Paul Tol's wine stands in the place of their yellow, which cannot be seen on white.
OWNER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#882255", "#000000")
OTHER_COLOUR = "#8C8C8C"  # a session without a name here
SHARED = "#C8C8C8"  # of several sessions, or of none
USED, EMPTY = "#FFFFFF", "#ECEFF1"  # somebody reads the cell; nobody does
BY_DEVICE = "#CDE7F7"  # the device has changed the cell
WRONG = "#D55E00"  # an outline or an arrow where something is wrong; other outlines and arrows are of INK
INK, FAINT_INK, LINE = "#1A1A1A", "#595959", "#8C8C8C"

WIDTH = 840  # a little less than the outputs of Jupyter Lab have in a window of 1280 pixels
MARGIN, GAP = 8, 5
TEXT, LINE_HEIGHT = 12, 15
SWATCH = 18  # a swatch and the room behind it
BOLD = 1.15  # how much wider bold text is


@dataclass(frozen=True, repr=False)
class Picture:
    """A finished picture. width and height are in pixels; snapshot: of the cache, which a later picture compares."""

    svg: str
    width: int
    height: int
    snapshot: object = field(default=None, compare=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture(width={self.width}, height={self.height})"


def moments(*captioned: tuple[str, Picture]) -> Picture:
    """Several pictures as one, each under its caption: side by side where they fit, else one above the other.

    Each argument is a pair (caption, picture). Raises `ConfigError` for none at all and for what is not such a pair.
    """
    if not captioned:
        raise ConfigError('no moments are given: give pairs such as ("before the step", picture)')
    for pair in captioned:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Picture)):
            raise ConfigError(f"{plain(pair):.60} is not a moment: give a pair (caption, picture)")
    captions, pictures = [plain(caption) for caption, _ in captioned], [picture for _, picture in captioned]
    row = sum(picture.width + GAP for picture in pictures) - GAP
    beside = row <= WIDTH
    sheet = Sheet((row if beside else max(picture.width for picture in pictures)) - 2 * MARGIN)
    lines = [wrapped(said, p.width - 2 * MARGIN, (TEXT + 3) * BOLD) for said, p in zip(captions, pictures, strict=True)]
    room = max(map(len, lines)) * (LINE_HEIGHT + 3)
    x, y = 0, sheet.y
    for caption, picture in zip(lines, pictures, strict=True):
        for number, line in enumerate(caption):
            at = (x + MARGIN, y + TEXT + number * (LINE_HEIGHT + 3))
            draw_text(sheet.root, at, line, size=TEXT + 3, weight="bold")
        _embed(sheet.root, picture, x, y + room)
        sheet.y = max(sheet.y, y + room + picture.height + GAP)
        x, y = (x + picture.width + GAP, y) if beside else (0, sheet.y)
    return sheet.picture(f"{len(pictures)} moments: {'; '.join(captions)}")


def _embed(parent: ElementTree.Element, picture: Picture, x: int, y: int) -> None:
    group = draw_shape(parent, "g", class_="moment", transform=f"translate({x} {y})")
    inside = ElementTree.fromstring(picture.svg)
    for element in inside.iter():
        element.tag = element.tag.rpartition("}")[2]  # the namespace is the whole picture's, written once
    group.extend(inside)


# -- words --------------------------------------------------------------------


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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


# -- the sheet --------------------------------------------------------------------


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

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Swatches with text, as many in a line as fit."""
        x = MARGIN
        for number, (swatch, text) in enumerate(entries):
            before = SWATCH if swatch else 0
            text = fit(text, self.inner - before, TEXT)
            width = before + ceil(text_width(text, TEXT))
            if number and x + width > MARGIN + self.inner:
                x, self.y = MARGIN, self.y + LINE_HEIGHT + 4
            draw_swatch(self.root, x, self.y + 1, swatch)
            draw_text(self.root, (x + before, self.y + TEXT), text)
            x += width + 3 * GAP
        self.y += LINE_HEIGHT + GAP + 2 if x > MARGIN else 0

    def picture(self, title: str, snapshot: object = None) -> Picture:
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


def draw_swatch(parent: ElementTree.Element, x: float, y: float, swatch: str) -> None:
    if swatch == "outline":
        draw_shape(parent, "rect", x=x + 1, y=y + 1, width=10, height=10, fill="white", stroke=INK, stroke_width=3)
    elif swatch:
        draw_shape(parent, "rect", x=x, y=y, width=12, height=12, fill=swatch)
