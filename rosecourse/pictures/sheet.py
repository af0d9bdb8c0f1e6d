"""Pictures as SVG: the elements that they are written with, how wide a text is, and several pictures as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from .colours import INK

WIDTH = 840  # a little less than the outputs of Jupyter Lab have in a window of 1280 pixels
MARGIN, GAP = 8, 5
TEXT, LINE_HEIGHT = 12, 15
BOLD = 1.15  # how much wider bold text is


@dataclass(frozen=True, repr=False)
class Picture:
    """A finished picture, on white: its texts are dark, whatever the theme.

    body: its SVG elements; width, height: in pixels; said: what a screen reader says; snapshot: of the cache, which a
    later picture compares.
    """

    body: str
    width: int
    height: int
    said: str
    snapshot: object = field(default=None, compare=False)

    @property
    def svg(self) -> str:
        size = {"width": self.width, "height": self.height}
        inside = shape("title", escape(plain(self.said))) + shape("rect", **size, fill="white") + self.body
        sheet = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {self.width} {self.height}", "role": "img"}
        look = {"style": "max-width: 100%", "font_family": "Helvetica, Arial, sans-serif"}
        return shape("svg", inside, **sheet, **size, **look)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture(width={self.width}, height={self.height})"


def moments(*captioned: tuple[str, Picture]) -> Picture:
    """Several pictures as one, each under its caption: side by side where they fit, else one above the other."""
    pictures = [picture for _, picture in captioned]
    row = sum(picture.width + GAP for picture in pictures) - GAP
    beside, size = row <= WIDTH, TEXT + 3
    captions = [wrapped(said, p.width - 2 * MARGIN, size * BOLD) for said, p in captioned]
    room = max(map(len, captions)) * (LINE_HEIGHT + 3)
    parts, x, y, bottom = [], 0, MARGIN, 0
    for lines, picture in zip(captions, pictures, strict=True):
        for number, line in enumerate(lines):
            parts.append(text(x + MARGIN, y + TEXT + number * (LINE_HEIGHT + 3), line, size, font_weight="bold"))
        inside = shape("title", escape(plain(picture.said))) + picture.body
        parts.append(shape("g", inside, class_="moment", transform=f"translate({x} {y + room})"))
        bottom = max(bottom, y + room + picture.height)
        x, y = (x + picture.width + GAP, y) if beside else (0, bottom + GAP)
    width = row if beside else max(picture.width for picture in pictures)
    said = "; ".join(caption for caption, _ in captioned)
    return Picture("".join(parts), width, bottom + MARGIN, f"{len(pictures)} moments: {said}")


def shape(tag: str, inside: str = "", /, **attributes: object) -> str:
    """An SVG element; `stroke_width` becomes stroke-width, `class_` class. inside: elements, or an escaped text."""
    told = {key.rstrip("_").replace("_", "-"): v for key, v in attributes.items()}
    written = "".join(f" {k}={quoteattr(f'{v:g}' if isinstance(v, float) else str(v))}" for k, v in told.items())
    return f"<{tag}{written}>{inside}</{tag}>"


def text(x: float, y: float, words: str, size: int = TEXT, /, **style: object) -> str:
    """A text that begins at x with its base line at y. style: such as `font_weight`."""
    return shape("text", escape(plain(words)), x=x, y=y, font_size=size, **{"fill": INK} | style)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def plain(words: str) -> str:
    """A text that XML can hold, on one line: XML has no place for control characters and halves of surrogates."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in words)


def text_width(words: str, size: float) -> float:
    return sum(map(_character_width, words)) * size


def _character_width(character: str) -> float:
    if character in "mwMW%@" or ord(character) > 0x2000:
        return 1.0
    if character in " .,:;'|!()[]ijltfr":
        return 0.4
    return 0.72 if character.isupper() else 0.62


def fit(words: str, width: float, size: float) -> str:
    if text_width(words, size) <= width:
        return words
    while words and text_width(words + "…", size) > width:
        words = words[:-1]
    return words + "…"


def wrapped(words: str, width: float, size: float) -> list[str]:
    """Lines of at most `width`; a longer word is cut."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(fit(word, width, size))
    return [line for line in lines if line] or [""]
