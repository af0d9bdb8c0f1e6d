"""What a plot shows, in words that are read off the plot itself, so that the two cannot disagree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

MOST = 24  # texts of one plot that are told
MOST_NUMBERS = 8  # texts that are nothing but a number
LONGEST = 1000  # letters in all


def alt_text(figure: Figure) -> str:
    """The titles, axes, series with their ranges, and texts of a figure, in sentences of at most 1,000 letters.

    A drawing without a title says what it is by the label of its axes, `ax.set_label`, which nobody sees.
    """
    parts = [_one_line(figure.get_suptitle()), *(part for ax in figure.axes for part in _parts(ax))]
    told = " ".join(part if part.endswith((".", "…", "?")) else f"{part}." for part in parts if part)
    return told if len(told) <= LONGEST else f"{told[: LONGEST - 1].rpartition(' ')[0]} …"


def _parts(ax: Axes) -> Iterator[str]:
    if not ax.axison and not ax.texts:
        return
    about = _one_line(f"{ax.get_title()}\n{ax.get_label()}", ", ")
    if about or not (ax.get_xlabel() or ax.get_ylabel()):
        yield about or "A drawing"
    ticks = [_one_line(label.get_text()) for axis in (ax.yaxis, ax.xaxis) for label in axis.get_ticklabels()]
    texts = [_one_line(text.get_text()) for text in ax.texts if text.get_visible()]
    if sum(map(_is_number, texts)) > MOST_NUMBERS:  # such as the numbers of lanes: nobody wants to hear them all
        texts = [text for text in texts if not _is_number(text)]
    told = {
        "Vertical axis": [_one_line(ax.get_ylabel(), ", ")],
        "Horizontal axis": [_one_line(ax.get_xlabel(), ", ")],
        "Rows or columns": [tick for tick in ticks if not _is_number(tick)],
        "Shown": list(dict.fromkeys(_series(ax))),
        "Written in it": texts,
    }
    for what, found in told.items():
        if said := [one for one in found if one]:
            more = f" and {len(said) - MOST} more" if len(said) > MOST else ""
            yield f"{what}: {'; '.join(said[:MOST])}{more}"


def _series(ax: Axes) -> Iterator[str]:
    """What the legends name; a line with the range of its values."""
    ranges = {line.get_label(): _range(line.get_ydata(orig=True)) for line in ax.get_lines()}
    legends = [child for child in ax.get_children() if isinstance(child, Legend)]
    named = [text.get_text() for legend in legends for text in legend.get_texts()]
    for label in [*named, *(name for name in ranges if not str(name).startswith("_"))]:
        yield f"{_one_line(str(label))}{ranges.get(label, '')}"


def _range(values: object) -> str:
    found = np.ma.masked_invalid(np.asarray(values, dtype=float)).compressed()
    if len(found) < 4:  # marks, or a line across
        return ""
    return f" ({found.min():.3g} to {found.max():.3g})"


def _is_number(label: str) -> bool:
    text = label.replace("−", "-").replace(",", "").removesuffix("%").strip()
    try:
        return float(text or "0") is not None
    except ValueError:
        return "$" in text  # a power of ten


def _one_line(text: str, between: str = " ") -> str:
    return between.join(" ".join(line.split()) for line in text.splitlines() if line.strip())
