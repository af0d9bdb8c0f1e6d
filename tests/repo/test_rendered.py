"""The notebooks as committed, where styles are stripped and no script runs: what a reader needs is still there."""

import base64
import io
import re
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from rosecourse.desk.notebooks import END, HUNTS, START, all_notebooks_in, notebooks_in
from tests.support.stripped import shown_outputs

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = all_notebooks_in(FOLDER)
START_PAGE = FOLDER / START
LESSONS = [path for path in notebooks_in(FOLDER) if path.stem[:3] > "035" and path.name != END]
DRAWN = [path for path in NOTEBOOKS if path != START_PAGE and path.parent.name != HUNTS]

WIDEST = 840  # pixels: the outputs have 848 in a window of 1280

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
outputs_of = cache(shown_outputs)


@each
def test_every_output_can_be_shown(path):
    assert not [one.cell for one in outputs_of(path) if one.kind == "nothing" or not one.text.strip()]


@each
def test_every_picture_is_sharp_and_says_what_it_shows(path):
    pictures = [one for one in outputs_of(path) if one.kind == "image/png"]
    for one in pictures:
        about = one.metadata.get("image/png", {})
        assert len(about.get("alt", "")) > 40, f"cell {one.cell}: show figures by `pictures.drawing`"
        width, height = Image.open(io.BytesIO(base64.b64decode(one.text))).size
        assert (width // 2, height // 2) == (about["width"], about["height"])
        assert about["width"] <= WIDEST
    drawings = [one for one in outputs_of(path) if one.kind == "image/svg+xml"]
    assert pictures + drawings or path not in DRAWN
    for one in drawings:
        assert re.search(r"<title>[^<]{20,}</title>", one.text), one.cell
    svgs = [
        (one.cell, width) for one in outputs_of(path) for width in re.findall(r'<svg\b[^>]*? width="([^"]*)"', one.text)
    ]
    assert [(cell, width) for cell, width in svgs if float(width) > WIDEST] == []


@each
def test_every_table_has_its_rows(path):
    tables = [table for one in outputs_of(path) if one.page for table in one.page.find_all("table")]
    if path in LESSONS:
        assert tables
    for table in tables:
        rows = [[cell.get_text().strip() for cell in row.find_all(["th", "td"])] for row in table.find_all("tr")]
        assert len(rows) > 0
        assert all(any(row) for row in rows)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_diffs_are_told_by_their_signs(path):
    diffs = [one.diff for one in outputs_of(path) if re.search(r"^[cC]hange\(", one.source, re.MULTILINE)]
    assert diffs
    for diff in diffs:
        lines = diff.splitlines()
        assert lines[0].startswith("--- ")
        assert any(line.startswith("@@ ") for line in lines)
        assert all(line[:1] in ("", " ", "+", "-", "@") for line in lines)
        assert any(re.match(r"\+    +\S", line) for line in lines), "indentation is lost"
    assert any(re.match(r"-    +\S", line) for diff in diffs for line in diff.splitlines())
