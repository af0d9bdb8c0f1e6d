"""What `make book` makes its pages of: the lists are complete, links meet headings, and docstrings become text."""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pandas as pd
import pytest

from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "docs" / "book"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

docstrings = script("book/docstrings")
cells = script("book/cells")


class Commented(NamedTuple):
    """Two numbers."""

    heads: int  # of K and V
    rows: int  # of a table (0 for none)


def prose_of(path):
    """The Markdown of a notebook, without blocks of code."""
    cells = json.loads(path.read_text())["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"(?m)^```[\s\S]*?^```|^    .*$", "", text)


def anchors_of(path):
    """As Jupyter makes them: the text of each heading, with hyphens for spaces."""
    titles = re.findall(r"(?m)^#+ (.*)$", prose_of(path))
    return {re.sub(r"[`*]", "", title.strip()).replace(" ", "-") for title in titles}


ANCHORS = {path.name: anchors_of(path) for path in NOTEBOOKS}


def test_code_in_a_modules_docstring_fits_into_a_page():
    """A longer line is scrolled sideways, on a page of any width."""
    texts = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in (ROOT / "rosecourse").rglob("*.py")]
    lines = [line for text in texts for line in text.splitlines() if line.startswith(docstrings.INDENTED)]
    assert len(lines) > 20
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_link_to_a_notebook_or_a_heading_leads_there(path):
    for name, anchor in re.findall(r"\]\(([^)#:]*\.ipynb|)(?:#([^)]+))?\)", prose_of(path)):
        target = name or path.name
        assert target in ANCHORS
        assert not anchor or unquote(anchor) in ANCHORS[target], f"{target} has no heading for #{anchor}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_link_to_a_file_is_to_a_module_which_the_book_shows(path):
    text = prose_of(path)
    for link in re.findall(r"\]\((\.\.?/[^)]*)\)", text):
        assert (path.parent / link).is_file()
        page = cells.with_module_links(f"[file]({link})")
        assert page.startswith("[file](#rosecourse."), f"the book has no place for {link}"


def test_long_code_is_folded_in_the_book_and_an_exercise_is_not():
    code = {"cell_type": "code", "metadata": {}, "source": "x = 1\n" * 40, "outputs": []}
    exercise = {**code, "metadata": {"tags": ["exercise"]}}
    short = {**code, "metadata": {}, "source": "x = 1\n"}
    page = json.loads(cells.as_page(json.dumps({"cells": [code, exercise, short]})))
    assert [cell["metadata"].get("tags") for cell in page["cells"]] == [["hide-input"], ["exercise"], []]


def test_columns_of_words_are_marked_in_a_table_and_those_of_numbers_are_not():
    frame = pd.DataFrame({"what": ["to 2 ms", ""], "ms": [1.5, None], "rung": ["035: 3", ""]}).to_html()
    cell = {"cell_type": "code", "metadata": {}, "source": "x", "outputs": [{"data": {"text/html": frame}}]}
    page = json.loads(cells.as_page(json.dumps({"cells": [cell]})))
    html = page["cells"][0]["outputs"][0]["data"]["text/html"]
    assert re.findall(r'<t[hd] class="words">([^<]*)<', html) == ["what", "to 2 ms", ""]


def test_every_folder_is_named_where_the_book_reads_it():
    named = re.findall(r"(?m)^\* `(\w+)/`", (ROOT / "docs" / "architecture.md").read_text())
    assert sorted(named) == sorted(path.parent.name for path in (ROOT / "rosecourse").glob("*/__init__.py"))


@pytest.mark.parametrize(
    ("docstring", "rst"),
    [
        ("Kernels: what is fast.", ["Kernels: what is fast."]),
        ("keys, values: for each layer.", ["", "* ``keys, values``: for each layer."]),
        (
            "Text.\n\nname: of it,\n    long.\nother: more.\nRaises `E`.",
            ["Text.", "", "", "* ``name``: of it,", "  long.", "* ``other``: more.", "", r"Raises \ :py:obj:`E`\ ."],
        ),
        ("As:\n\n    a = b_\n\n    c\n\nText.", ["As:", "", "", "::", "", "    a = b_", "", "    c", "", "", "Text."]),
        ("It is *free*, `a * b` or 2 * a_.", ["It is *free*, \\ ``a * b``\\  or 2 \\* a\\_."]),
        ("Two:\n* one\n  long\n* two", ["Two:", "", "* one", "  long", "* two"]),
        ("It is one\nhalf: of it", ["It is one", "half: of it"]),
    ],
)
def test_a_docstring_becomes_text(docstring, rst):
    assert docstrings.to_rst(docstring.split("\n")) == rst


def test_the_description_of_each_argument_begins_a_line():
    lines = ["Two. part: a class. number: of the", "lesson. rest:", "none: not of ours"]
    assert docstrings.a_line_each(lines, {"part", "number", "rest"}) == [
        "Two.",
        "part: a class.",
        "number: of the",
        "lesson.",
        "rest: none: not of ours",
    ]
    assert docstrings.a_line_each(["runs: how many; part: a class."], {"runs", "part"}) == [
        "runs: how many;",
        "part: a class.",
    ]


def test_the_comments_of_fields_become_a_list_with_an_item_each():
    fields = docstrings.commented(Commented, ["Two numbers."])
    assert docstrings.to_rst(fields) == ["", "* ``heads``: of K and V.", "* ``rows``: of a table (0 for none)"]
