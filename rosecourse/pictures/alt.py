"""What a plot shows, in words that are read off the plot itself, so that the two cannot disagree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MOST = 24  # texts of one plot that are told
MOST_NUMBERS = 8  # texts that are nothing but a number
LONGEST = 1000  # letters in all


def alt_text(figure: Figure) -> str:
    """The titles, axes, series with their ranges, and texts of a figure, in sentences of at most 1,000 letters.

    A drawing without a title says what it is by the label of its axes, `ax.set_label`, which nobody sees.
    """
    title = [_one_line(figure.get_suptitle())] if figure.get_suptitle() else []
    told = " ".join(_sentence(part) for part in [*title, *(part for ax in figure.axes for part in _parts(ax))])
    return told if len(told) <= LONGEST else f"{told[: LONGEST - 1].rpartition(' ')[0]} …"


def _parts(ax: Axes) -> Iterator[str]:
    if not ax.axison and not ax.texts:
        return
    about = ", ".join(map(_one_line, [*ax.get_title().splitlines(), *str(ax.get_label()).splitlines()]))
    labels = {"Vertical": ax.get_ylabel(), "Horizontal": ax.get_xlabel()}
    if about or not any(labels.values()):
        yield about or "A drawing"
    yield from (
        f"{which} axis: {', '.join(map(_one_line, label.splitlines()))}" for which, label in labels.items() if label
    )
    rows = [label for label in _ticks(ax) if not _is_number(label)]
    if rows:
        yield f"Rows or columns: {_listed(rows)}"
    series = list(dict.fromkeys(_series(ax)))
    if series:
        yield f"Shown: {_listed(series)}"
    texts = [_one_line(text.get_text()) for text in ax.texts if text.get_text().strip() and text.get_visible()]
    if sum(map(_is_number, texts)) > MOST_NUMBERS:  # such as the numbers of lanes: nobody wants to hear them all
        texts = [text for text in texts if not _is_number(text)]
    if texts:
        yield f"Written in it: {_listed(texts)}"


def _series(ax: Axes) -> Iterator[str]:
    """What the legend names; a line with the range of its values."""
    ranges = {line.get_label(): _range(line.get_ydata(orig=True)) for line in ax.get_lines()}
    legend = ax.get_legend()
    labels = [text.get_text() for text in legend.get_texts()] if legend else []
    for label in dict.fromkeys([*labels, *(name for name in ranges if not str(name).startswith("_"))]):
        yield f"{_one_line(str(label))}{ranges.get(label, '')}"


def _range(values: object) -> str:
    found = np.ma.masked_invalid(np.asarray(values, dtype=float)).compressed()
    if len(found) < 4:  # marks, or a line across
        return ""
    return f" ({found.min():.3g} to {found.max():.3g})"


def _ticks(ax: Axes) -> list[str]:
    return [_one_line(label.get_text()) for axis in (ax.yaxis, ax.xaxis) for label in axis.get_ticklabels()]


def _is_number(label: str) -> bool:
    text = label.replace("−", "-").replace(",", "").removesuffix("%").strip()
    try:
        return float(text or "0") is not None
    except ValueError:
        return "$" in text  # a power of ten


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return "; ".join(texts[:MOST]) + more


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str) -> str:
    return text if text.endswith((".", "…", "?")) else f"{text}."
