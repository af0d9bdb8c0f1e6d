"""Figures in a notebook: sharp, with an alternative text, and none where drawing failed."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output
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


def draw(ax):
    ax.plot(np.arange(10), np.arange(10) ** 2, color="#D55E00", label="after")
    ax.set(title="Squares\nof numbers", xlabel="number", ylabel="square")
    ax.annotate("81 at the end", (9, 81))
    ax.legend()


def test_a_picture_has_twice_the_pixels_of_its_size_on_the_page(published):
    with new_axes(2.0) as ax:
        draw(ax)
    ((data, metadata),) = published
    about = metadata["image/png"]
    picture = Image.open(io.BytesIO(data["image/png"]))
    assert tuple(pixels // 2 for pixels in picture.size) == (about["width"], about["height"])
    assert WIDTH - 40 < about["width"] <= WIDTH
    assert picture.mode == "P"
    assert data["text/plain"] == "<Figure size 820x200 with 1 Axes>"
    near = np.abs(np.asarray(picture.convert("RGB")).astype(int) - (0xD5, 0x5E, 0x00)).max(axis=-1)
    assert (near < 8).sum() > 1000  # the line, in its colour


def test_nbconvert_finds_the_alternative_text_of_a_plot(published, recwarn):
    with new_axes(2.0, columns=2) as axes:
        draw(axes[0])
        axes[1].bar(["before", "after"], [2, 1])
    ((data, metadata),) = published
    alt = metadata["image/png"]["alt"]
    assert alt.startswith("Squares, of numbers. Vertical axis: square. Horizontal axis: number.")
    assert "Shown: after. Written in it: 81 at the end." in alt
    assert alt.endswith("Rows or columns: before; after.")
    output = new_output("display_data", data=data | {"image/png": "aGVsbG8="}, metadata=metadata)
    notebook = new_notebook(cells=[new_code_cell("draw()", outputs=[output])])
    page, _ = HTMLExporter(template_name="classic").from_notebook_node(notebook)
    assert f'alt="{alt}"' in page
    assert not [warning for warning in recwarn if "alt" in str(warning.message).lower()]


def test_where_drawing_fails_nothing_is_shown(published):
    with pytest.raises(KeyError), new_axes(2.0) as ax:
        ax.plot({}["nothing"])
    assert not published
