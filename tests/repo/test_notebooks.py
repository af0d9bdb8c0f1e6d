"""The notebooks as committed: executed in one go, small, linked, with pictures for everybody and no typed figures."""

import ast
import base64
import io
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from PIL import Image

from rosecourse.desk.notebooks import HUNTS, START, all_notebooks_in, notebooks_in, source_of
from rosecourse.pages.shared import lessons_on
from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
LESSONS = notebooks_in(FOLDER)
PAGES = {path: json.loads(path.read_text(encoding="utf-8")) for path in all_notebooks_in(FOLDER)}
BY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
MOST_BYTES = 1_000_000
WIDEST = 840  # pixels: the outputs have 848 in a window of 1280


def cells_of(path, kind):
    return [cell for cell in PAGES[path]["cells"] if cell["cell_type"] == kind]


def markdown_of(path):
    return "\n\n".join(source_of(cell) for cell in cells_of(path, "markdown"))


@BY_PAGE
def test_notebook_is_executed_in_one_go_and_small(path):
    assert path.stat().st_size < MOST_BYTES
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    assert PAGES[path]["metadata"]["kernelspec"] == kernel  # else Jupyter Lab changes it when it opens the notebook
    code = cells_of(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [one for one in outputs if one["output_type"] == "error" or one.get("name") == "stderr"]


@BY_PAGE
def test_picture_of_a_notebook_is_sharp_and_says_what_it_shows(path):
    found = {}
    for kind in ("image/png", "image/svg+xml"):
        outputs = [one for cell in cells_of(path, "code") for one in cell["outputs"] if kind in one.get("data", {})]
        found[kind] = [("".join(one["data"][kind]), one["metadata"].get(kind, {})) for one in outputs]
    assert any(found.values()) or path == FOLDER / START or path.parent.name == HUNTS
    for data, about in found["image/png"]:
        assert len(about["alt"]) > 40, "show figures by `pictures.drawing`"
        width, height = Image.open(io.BytesIO(base64.b64decode(data))).size
        assert (width // 2, height // 2) == (about["width"], about["height"])
        assert about["width"] <= WIDEST
    for drawing, _ in found["image/svg+xml"]:
        assert re.search(r"<title>[^<]{20,}</title>", drawing)
        assert float(re.search(r'<svg\b[^>]*? width="([^"]*)"', drawing)[1]) <= WIDEST


@BY_PAGE
def test_answer_to_a_prediction_is_shown(path):
    for cell in cells_of(path, "code"):
        lines = ast.parse(source_of(cell)).body if "reveal(" in source_of(cell) else []
        for line in map(ast.unparse, lines):
            assert not line.startswith("reveal(") or line == ast.unparse(lines[-1]), "Jupyter shows the last line alone"


def test_page_without_its_live_figure_fails(tmp_path):
    """`pytest --nbval` says so, whatever its cells do; and a cell fails that raises when it is run again."""
    pytest.importorskip("nbval")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "notebooks").mkdir()
    png = nbformat.v4.new_output("display_data", {"image/png": ""})
    for number, source, outputs in (("036", "# your_run(", [png]), ("038", "other", [png]), ("059", "your_run()", [])):
        cell = nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=1)
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks" / f"{number}_page.ipynb")
    source, stored = "assert 'seen' not in globals()\nseen = 1", {"tags": ["nbval-check-output"]}
    once = nbformat.v4.new_code_cell(source, metadata=stored, execution_count=1)
    nbformat.write(nbformat.v4.new_notebook(cells=[once]), tmp_path / "notebooks" / "once.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert re.findall(r"^(ERROR|FAILED) notebooks/(\w+)", said, re.M) == [
        ("FAILED", "once"),
        ("ERROR", "038_page"),
        ("ERROR", "059_page"),
    ]


# -- links ----------------------------------------------------------------------------------------------------------


def prose_of(path):
    """The Markdown of a notebook, without blocks of code."""
    return re.sub(r"(?m)^```[\s\S]*?^```|^    .*$", "", markdown_of(path))


@cache
def anchors_of(path):
    """As Jupyter makes them: the text of each heading, with hyphens for spaces."""
    titles = re.findall(r"(?m)^#+ (.*)$", prose_of(path))
    return {re.sub(r"[`*]", "", title.strip()).replace(" ", "-") for title in titles}


@BY_PAGE
def test_link_of_a_notebook_leads_to_a_notebook_and_a_heading(path):
    for name, anchor in re.findall(r"\]\(([^)#:]*\.ipynb|)(?:#([^)]+))?\)", prose_of(path)):
        target = (path.parent / name).resolve() if name else path
        assert target in PAGES
        assert not anchor or unquote(anchor) in anchors_of(target), f"{target} has no heading for #{anchor}"


def test_lessons_that_are_named_are_there_under_their_titles():
    """037 belongs to the articles' series alone."""
    heads = [source_of(PAGES[path]["cells"][0]) for path in LESSONS]
    links = [link for head in heads for link in re.findall(r"\*\*(?:Previous|Next):\*\* \[(\d{3}), ([^\]]+)\]", head)]
    title_of = script("notebook_feet").title_of
    assert links
    assert [(number, title) for number, title in links if title != title_of(number)] == []
    known = {number for path in LESSONS for number in lessons_on(path)} | {"037"}
    named = [
        (path.stem, one) for path in PAGES for one in re.findall(r"(?<![\w.,/-])0\d\d\b(?![.,]\d)", markdown_of(path))
    ]
    assert [(page, one) for page, one in named if one not in known] == []


# -- a figure that comes from a measurement is computed, or read from a file ----------------------------------------

# A number with a unit that only a measurement gives. A product such as 12 × 64 is arithmetic, and allowed.
MEASURED = re.compile(
    r"\d[\d.,]*\s*(?:"
    r"(?:ms|µs|us|ns|seconds?|tokens/s|tok/s|tokens a second|[KMGT]B/s|per ?cent|times (?:as|faster|slower))\b"
    r"|%|[x×](?![\w\s]*\d))"
)  # fmt: skip
# How long a lesson takes is advice, and stands in its first cell.
ADVICE = re.compile(r"\*\*Time:\*\*[^\n]*")


def texts_of(cell):
    """The text of a Markdown cell without code, and of a code cell the literal parts of its strings and comments."""
    source = source_of(cell)
    if cell["cell_type"] == "markdown":
        return [ADVICE.sub("", re.sub(r"(?m)```[\s\S]*?```|`[^`]*`|^    .*$", "", source))]
    source = re.sub(r"(?m)^[%!].*$", "", source)
    return re.findall(r"(?m)#.*$", source) + strings_of(ast.parse(source))


def strings_of(node):
    """The strings in a piece of code, without the formats of f-strings."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    children = [node.value] if isinstance(node, ast.FormattedValue) else ast.iter_child_nodes(node)
    return [text for child in children for text in strings_of(child)]


@BY_PAGE
def test_no_measured_figure_is_typed_into_a_notebook(path):
    for number, cell in enumerate(PAGES[path]["cells"]):
        found = [match.group() for text in texts_of(cell) for match in MEASURED.finditer(text)]
        assert found == [], f"cell {number}: compute it in a cell, or read it from a file"


def test_measured_figure_is_told_from_arithmetic_and_code():
    for text in ("it takes 4.5 ms", "1.3x faster", "2× that", "2.1 %", "14,420 tokens/s", "0.4 µs"):
        assert MEASURED.search(text)
    assert not MEASURED.search("12 × 64 = 768 calls, block 64, p99 of 16, GPT-2 (124M), 36,864 bytes, int32 [2, 3]")
    assert texts_of({"cell_type": "markdown", "source": "run `sleep 3 s`\n\n    5 ms\n\n```\n7 %\n```\n"})[
        0
    ].split() == ["run"]
    assert texts_of({"cell_type": "code", "source": "print(f'{x:.2f} ms')  # 2 ms"}) == ["# 2 ms", " ms"]
