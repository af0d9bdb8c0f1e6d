"""What the notebooks and the README say: a figure that comes from a measurement is computed, or read from a file."""

import ast
import json
import re
from pathlib import Path

import pytest

from rosecourse.desk.notebooks import END, START, all_notebooks_in, notebooks_in
from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
NOTEBOOKS = all_notebooks_in(ROOT / "notebooks")

# A number with a unit that only a measurement gives. A product such as 12 × 64 is arithmetic, and allowed.
MEASURED = re.compile(
    r"\d[\d.,]*\s*(?:"
    r"(?:ms|µs|us|ns|seconds?|tokens/s|tok/s|tokens a second|[KMGT]B/s|per ?cent|times (?:as|faster|slower))\b"
    r"|%|[x×](?![\w\s]*\d))"
)  # fmt: skip
# How long a lesson takes is advice, and stands in its first cell.
ADVICE = re.compile(r"\*\*Time:\*\*[^\n]*")


def prose_of(cell):
    """The text of a Markdown cell without code, and of a code cell the literal parts of its strings and comments."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        source = re.sub(r"(?m)```[\s\S]*?```|`[^`]*`|^    .*$", "", source)
        return [ADVICE.sub("", source)]
    source = re.sub(r"(?m)^[%!].*$", "", source)
    comments = re.findall(r"(?m)#.*$", source)
    return comments + strings_of(ast.parse(source))


def strings_of(node):
    """The strings in a piece of code, without the formats of f-strings."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    children = [node.value] if isinstance(node, ast.FormattedValue) else ast.iter_child_nodes(node)
    return [text for child in children for text in strings_of(child)]


def measured_figures(text):
    return [match.group() for match in MEASURED.finditer(text)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_measured_figure_is_typed_into_a_notebook(path):
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        for text in prose_of(cell):
            assert measured_figures(text) == [], f"cell {number}: compute it in a cell, or read it from a file"


@pytest.mark.parametrize("text", ["it takes 4.5 ms", "1.3x faster", "2× that", "2.1 %", "14,420 tokens/s", "0.4 µs"])
def test_a_measured_figure_is_seen(text):
    assert measured_figures(text)


def test_arithmetic_and_names_are_allowed():
    assert not measured_figures("12 × 64 = 768 calls, block 64, p99 of 16, GPT-2 (124M), 36,864 bytes, int32 [2, 3]")


def test_code_in_prose_and_formats_are_not_prose():
    assert prose_of({"cell_type": "markdown", "source": "run `sleep 3 s`\n\n    5 ms\n\n```\n7 %\n```\n"}) == [
        "run \n\n\n\n\n"
    ]
    assert prose_of({"cell_type": "code", "source": "print(f'{x:.2f} ms')  # 2 ms"}) == ["# 2 ms", " ms"]


TABLES = script("readme_table")


@pytest.mark.parametrize("path", TABLES.tables(), ids=lambda path: path.name)
def test_a_page_shows_the_tables_that_the_ladder_and_the_records_make(path):
    text = path.read_text()
    for table in TABLES.tables()[path]:
        assert table in text, "run `python docs/readme_table.py`"


def test_every_notebook_has_a_row_in_the_readme():
    start, *lessons, end = notebooks_in(ROOT / "notebooks")
    assert (start.name, end.name) == (START, END)
    links = re.findall(r"(?m)^\| \[(\d{3}) [^]]+\]\(notebooks/(.*?)\)", (ROOT / "README.md").read_text())
    assert links == [(path.stem[:3], path.name) for path in lessons]  # no other notebook without a rung
    assert f"](notebooks/{END})" in (ROOT / "README.md").read_text()
