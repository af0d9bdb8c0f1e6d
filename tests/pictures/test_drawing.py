"""Figures in a notebook: sharp, with an alternative text, and none where drawing failed."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rosecourse.pictures.drawing import new_axes
from rosecourse.pictures.sheet import WIDTH


@pytest.fixture
def published(monkeypatch):
    """What a cell puts into its output: pairs of data and metadata."""
    seen = []
    kernel = SimpleNamespace(get_parent=lambda channel: {})
    display_pub = SimpleNamespace(publish=lambda data, metadata: seen.append((data, metadata)))
    shell = SimpleNamespace(kernel=kernel, display_pub=display_pub)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0)))
    return seen


def test_picture_has_twice_the_pixels_of_its_size_and_a_text(published):
    with new_axes(2.0, columns=2) as (ax, other):
        ax.plot(np.arange(10), np.arange(10) ** 2, color="#D55E00", label="after", linewidth=4)
        ax.set(title="Squares\nof numbers", xlabel="number", ylabel="square")
        ax.annotate("81 at the end", (9, 81))
        ax.legend()
        other.bar(["before", "after"], [2, 1])
    ((data, metadata),) = published
    about = metadata["image/png"]
    picture = Image.open(io.BytesIO(data["image/png"]))
    assert tuple(pixels // 2 for pixels in picture.size) == (about["width"], about["height"])
    assert WIDTH - 40 < about["width"] <= WIDTH
    assert picture.mode == "P"
    assert data["text/plain"] == "<Figure size 820x200 with 2 Axes>"
    near = np.abs(np.asarray(picture.convert("RGB")).astype(int) - (0xD5, 0x5E, 0x00)).max(axis=-1)
    assert (near < 8).sum() > 1000  # the line, in its colour
    assert about["alt"].startswith("Squares, of numbers. Vertical axis: square. Horizontal axis: number.")
    assert "Shown: after. Written in it: 81 at the end." in about["alt"]
    assert about["alt"].endswith("Rows or columns: before; after.")


def test_figure_where_drawing_fails_is_not_shown(published):
    with pytest.raises(KeyError), new_axes(2.0) as ax:
        ax.plot({}["nothing"])
    assert not published
