"""What `make book` makes its pages of: the lists are complete, links meet headings, and docstrings become text."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from rosecourse.desk.notebooks import all_notebooks_in
from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
NOTEBOOKS = all_notebooks_in(ROOT / "notebooks")

hooks = script("book/hooks")


def prose_of(path):
    """The Markdown of a notebook, without blocks of code."""
    cells = json.loads(path.read_text())["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"(?m)^```[\s\S]*?^```|^    .*$", "", text)


def anchors_of(path):
    """As Jupyter makes them: the text of each heading, with hyphens for spaces."""
    titles = re.findall(r"(?m)^#+ (.*)$", prose_of(path))
    return {re.sub(r"[`*]", "", title.strip()).replace(" ", "-") for title in titles}


ANCHORS = {path: anchors_of(path) for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_link_to_a_notebook_or_a_heading_leads_there(path):
    for name, anchor in re.findall(r"\]\(([^)#:]*\.ipynb|)(?:#([^)]+))?\)", prose_of(path)):
        target = (path.parent / name).resolve() if name else path
        assert target in ANCHORS
        assert not anchor or unquote(anchor) in ANCHORS[target], f"{target} has no heading for #{anchor}"


def test_long_code_is_folded_in_the_book_and_an_exercise_is_not():
    code = {"cell_type": "code", "metadata": {}, "source": "x = 1\n" * 40}
    exercise = {**code, "metadata": {"tags": ["exercise"]}}
    short = {**code, "metadata": {}, "source": "x = 1\n"}
    assert [tags for tags, _ in pages([code, exercise, short])] == [["hide-input"], ["exercise"], []]


def test_the_pictures_of_the_book_keep_their_alternative_texts():
    png = {"data": {"image/png": ""}, "metadata": {"image/png": {"alt": "a line"}}}
    svg = {"data": {"image/svg+xml": ["<svg width='1'>\n", "<title>a &amp; b</title>"]}}
    cell = {"cell_type": "code", "metadata": {}, "source": "x", "outputs": [png, svg]}
    assert pages([cell])[0][1] == {"image": {"alt": "a line a & b"}}


def pages(cells):
    """Tags and settings of each cell as the book has them."""
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: Path(name)))
    source = [json.dumps({"cells": cells})]
    hooks.read_source(app, "x.ipynb", source)
    return [(cell["metadata"]["tags"], cell["metadata"].get("mystnb")) for cell in json.loads(source[0])["cells"]]


@pytest.mark.parametrize(
    ("docstring", "rst"),
    [
        (
            "Text.\n\nname: of it,\nlong.\nRaises `E`.",
            ["Text.", "", "", "* name: of it,", "  long.", "", "Raises \\ ``E``\\ ."],
        ),
        ("As:\n\n    a = b_\n\n    c", ["As:", "", "::", "", "    a = b_", "", "    c"]),
        ("It is *free*, `a * b` or 2 * a_.", [r"It is \*free\*, \ ``a * b``\  or 2 \* a\_."]),
    ],
)
def test_a_docstring_becomes_text(docstring, rst):
    lines = docstring.split("\n")
    hooks.plain_text(None, "", "", None, None, lines)
    assert lines == rst
