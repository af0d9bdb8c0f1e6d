"""The pictures of the notebooks as committed: sharp, no wider than a page, and with words for who cannot see them."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from rosecourse.desk.notebooks import HUNTS, START, all_notebooks_in

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = all_notebooks_in(FOLDER)
WITHOUT_PICTURES = {FOLDER / START, *(path for path in NOTEBOOKS if path.parent.name == HUNTS)}
WIDEST = 840  # pixels: the outputs have 848 in a window of 1280


def outputs_of(path, kind):
    """The outputs of one kind: each text, and what its metadata say."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [one for cell in cells for one in cell.get("outputs", []) if kind in one.get("data", {})]
    return [("".join(one["data"][kind]), one["metadata"].get(kind, {})) for one in outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_picture_is_sharp_and_says_what_it_shows(path):
    pictures, drawings = outputs_of(path, "image/png"), outputs_of(path, "image/svg+xml")
    assert pictures + drawings or path in WITHOUT_PICTURES
    for data, about in pictures:
        assert len(about["alt"]) > 40, "show figures by `pictures.drawing`"
        width, height = Image.open(io.BytesIO(base64.b64decode(data))).size
        assert (width // 2, height // 2) == (about["width"], about["height"])
        assert about["width"] <= WIDEST
    for drawing, _ in drawings:
        assert re.search(r"<title>[^<]{20,}</title>", drawing)
        assert float(re.search(r'<svg\b[^>]*? width="([^"]*)"', drawing)[1]) <= WIDEST
