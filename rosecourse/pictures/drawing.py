"""Figures of matplotlib as a notebook shows them: at twice the resolution, and with an alternative text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from PIL import Image

from ..pages.shell import kernels_shell

SCALE = 2  # pixels of the picture for one of the page, each way: sharp on the screens of today
MOST, LONGEST = 24, 1000  # of an alternative text: texts of one plot that are told, and letters in all
WIDTH = 8.2  # inches, which is less than Jupyter Lab's outputs have in a window of 1280 pixels


@contextmanager
def new_figure(height: float) -> Iterator[Figure]:
    """An empty figure to draw on, `WIDTH` wide; it is shown when the block ends, and where that fails nothing is.

    height: in inches.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    show(figure)


@contextmanager
def new_axes(height: float, rows: int = 1, columns: int = 1, **more: Any) -> Iterator[Any]:
    """The axes of a figure that is shown when the block ends: one, or an array of them for more rows or columns.

    height: of the whole figure, in inches. more: as of `Figure.subplots`.

    with new_axes(3.6) as ax:
        plots.itl_along_steps_compared(ax, found, "Lesson 036: token by token")
    """
    with new_figure(height) as figure:
        yield figure.subplots(rows, columns, **more)


def show(figure: Figure) -> None:
    """Put a figure into the output of the cell, with its alternative text; elsewhere than in a notebook do nothing.

    The picture is on white, in a dark theme too, and has at most 256 colours, which keeps notebooks small.
    """
    shell = kernels_shell()
    if shell is None:
        return
    drawn, written = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=SCALE * figure.dpi, bbox_inches="tight", facecolor="white")
    picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(written, "PNG", optimize=True)
    data = {"image/png": written.getvalue(), "text/plain": repr(figure)}
    # Where nbconvert's classic template reads it. Renderers that sanitise HTML, as GitHub does, may drop an `<img>`.
    width, height = (pixels // SCALE for pixels in picture.size)
    shell.display_pub.publish(data, metadata={"image/png": {"width": width, "height": height, "alt": alt_text(figure)}})


def alt_text(figure: Figure) -> str:
    """The titles, axes, series and texts of a figure, in sentences: read off it, so that the two cannot disagree.

    A drawing without a title says what it is by the label of its axes, `ax.set_label`, which nobody sees.
    """
    parts = [_one_line(figure.get_suptitle()), *(part for ax in figure.axes for part in _parts(ax))]
    parts += [f"Shown: {'; '.join(_legend(figure.legends))}"] if figure.legends else []
    told = " ".join(part if part.endswith((".", "?")) else f"{part}." for part in parts if part)
    return told if len(told) <= LONGEST else f"{told[: LONGEST - 1].rpartition(' ')[0]} …"


def _parts(ax: Axes) -> Iterator[str]:
    if not ax.axison and not ax.texts:
        return
    yield _one_line(f"{ax.get_title()}\n{ax.get_label()}", ", ")
    ticks = [label.get_text() for axis in (ax.yaxis, ax.xaxis) for label in axis.get_ticklabels()]
    told = {
        "Vertical axis": [_one_line(ax.get_ylabel(), ", ")],
        "Horizontal axis": [_one_line(ax.get_xlabel(), ", ")],
        "Rows or columns": [tick for tick in map(_one_line, ticks) if not _is_number(tick)],
        "Shown": _legend(child for child in ax.get_children() if isinstance(child, Legend)),
        "Written in it": [text for text in (_one_line(one.get_text()) for one in ax.texts) if not _is_number(text)],
    }
    for what, found in told.items():
        if said := [one for one in found if one]:
            yield f"{what}: {'; '.join(said[:MOST])}{f' and {len(said) - MOST} more' * (len(said) > MOST)}"


def _legend(legends: Iterable[Legend]) -> list[str]:
    return [_one_line(text.get_text()) for legend in legends for text in legend.get_texts()]


def _is_number(text: str) -> bool:
    """Such as the numbers of an axis: nobody wants to hear them all."""
    return not any(map(str.isalpha, text)) or "$" in text


def _one_line(text: str, between: str = " ") -> str:
    return between.join(" ".join(line.split()) for line in text.splitlines() if line.strip())
