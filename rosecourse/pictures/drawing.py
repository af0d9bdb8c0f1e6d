"""Figures of matplotlib as a notebook shows them: at twice the resolution, and with an alternative text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ..pages.shell import kernels_shell
from .alt import alt_text

SCALE = 2  # pixels of the picture for one of the page, each way: sharp on the screens of today
WIDTH = 8.2  # inches, which is less than Jupyter Lab's outputs have in a window of 1280 pixels
FREQUENT, OTHERS = 64, 64  # colours: more make plots no better, and files larger


@contextmanager
def new_figure(height: float) -> Iterator[Figure]:
    """An empty figure to draw on, `WIDTH` wide; it is shown when the block ends, and where that fails nothing is.

    height: in inches.

    with new_figure(5.2) as figure:
        plots.ladder_of_steps(figure, steps, "A decode step, lesson by lesson")
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
    """Put a figure into the output of the cell, with its alternative text; elsewhere than in a notebook do nothing."""
    shell = kernels_shell()
    if shell is None:
        return
    picture = rendered(figure)
    width, height = (pixels // SCALE for pixels in picture.size)
    data = {"image/png": _png(picture), "text/plain": repr(figure)}
    # Where the classic template of nbconvert reads it; JupyterLab has no use for it yet. An `<img>` in HTML would be
    # read everywhere, but renderers that sanitise HTML, as GitHub does, may then drop the picture itself.
    about = {"width": width, "height": height, "alt": alt_text(figure)}
    shell.display_pub.publish(data, metadata={"image/png": about})


def rendered(figure: Figure) -> Image.Image:
    """The figure as a picture of few colours, at `SCALE` times its own resolution, cut to what is drawn on it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=SCALE * figure.dpi, bbox_inches="tight", facecolor="white")
    return with_few_colours(Image.open(buffer).convert("RGB"))


def with_few_colours(picture: Image.Image) -> Image.Image:
    """A picture in RGB with its `FREQUENT` most frequent colours, and `OTHERS` for what has none of them.

    Whatever is filled keeps the very colour that it was given, so that legends name the right ones: Pillow's own choice
    would take the mean of two that are alike. It chooses the others, which are those of edges.
    """
    packed = np.asarray(picture).reshape(-1, 3) @ [1 << 16, 1 << 8, 1]
    found, which, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = (found[:, np.newaxis] >> np.array([16, 8, 0]) & 255).astype(np.uint8)
    order = np.argsort(-counts, kind="stable")
    palette = colours[order[:FREQUENT]]
    if len(order) > FREQUENT:
        edges = Image.fromarray(colours[order[FREQUENT:]][np.newaxis]).quantize(OTHERS, dither=Image.Dither.NONE)
        others = np.array(edges.getpalette(), np.uint8).reshape(-1, 3)[:OTHERS]
        palette = np.concatenate([palette, others])
    nearest = np.square(colours[:, np.newaxis] - palette.astype(int)).sum(axis=-1).argmin(axis=1)
    few = Image.frombytes("P", picture.size, nearest.astype(np.uint8)[which].tobytes())
    few.putpalette(palette.tobytes())
    return few


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
