"""Notebooks say sentences and do not print them: a printed line that is too wide is broken in the middle of a word."""

import ast
import json
import re
from pathlib import Path

import pytest

from rosecourse.desk.notebooks import all_notebooks_in

NOTEBOOKS = all_notebooks_in(Path(__file__).parents[2] / "notebooks")
MOST_COLUMNS = 70
VALUE = "0.00"  # what a value is counted as, whose width is not known here
FEWEST_WORDS = 6  # fewer are a label beside values
SENTENCES = {"claim", "effect", "sentences", "verdict"}  # what the library says, when called
REMEDY = "show a sentence by `say` of rosecourse.pages.say; `print` is for tables, tokens, code and short lines"


def prose(node):
    """The literal text of an expression; a value in it is as wide as `VALUE`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else VALUE
    if isinstance(node, ast.JoinedStr):
        return "".join(map(prose, node.values))
    return VALUE


def is_sentence(node):
    """Whether it is prose that may be too wide, or what the library says in sentences."""
    text = prose(node)
    if len(text) > MOST_COLUMNS and len(re.findall(r"[^\W\d_]{2,}", text)) >= FEWEST_WORDS:
        return "  " not in text.strip()  # with columns it is a row of a table
    return any(
        (isinstance(one, ast.Call) and ast.unparse(one.func).rpartition(".")[2] in SENTENCES)
        or (isinstance(one, ast.Attribute) and one.attr == "provenance")
        or (isinstance(one, ast.Name) and one.id in ("sentence", "sentences"))
        for one in ast.walk(node)
    )


def printed_sentences(source):
    """The calls of `print` in a cell that print a sentence."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func) == "print" and any(is_sentence(one) for one in (*call.args, together(call)))
    ]


def together(call):
    """All arguments of a `print` as the one line that they make."""
    parts = [part for one in call.args for part in (one, ast.Constant(" "))]
    return ast.JoinedStr(parts[:-1])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_no_sentence(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    sources = {cell["id"]: re.sub(r"(?m)^[%!].*$", "", "".join(cell["source"])) for cell in cells}
    found = {name: calls for name, source in sources.items() if (calls := printed_sentences(source))}
    assert not found, REMEDY


@pytest.mark.parametrize(
    "source",
    [
        'print(f"A step takes {ms:.2f} ms, which is {share:.0%} of the time that the whole of it takes.")',
        'print(\n    "No GPU here: its graphs are compared with the padded "\n    "step where there is one."\n)',
        'print("A step takes", ms, "ms, and the device is busy for a share of", share, "of it, here.")',
        'if on_gpu:\n    print(recorded.effect("ITL", "p50"))',
        'print(*recorded.sentences("036"), sep="\\n")',
        'print("-", sentence)',
        'print("recorded:", found.provenance)',
        "print(f\"{found.verdict('036')}.\")",
    ],
)
def test_a_printed_sentence_is_found(source):
    assert len(printed_sentences(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'print(f"{len(after)} tokens of {len(sessions)} sessions: the same before and after")',
        'print(f"K and V of {batch} requests with {context} tokens each, all layers   {cache / 1e6:6.1f} MB")',
        'print("the last two tokens, right: ", {"A": [2514, 1257], "B": [491, 1784]})',
        'print(f"{name:<17}", table.to_string())',
        'print(f"The copies: {copying}, {copying.verdict}.")',
        'say(f"A step takes {ms:.2f} ms, which is {share:.0%} of the time that the whole of it takes.")',
        'raise ValueError("a step takes longer than anybody could have thought of, and this message too")',
    ],
)
def test_short_lines_tables_and_values_may_be_printed(source):
    assert printed_sentences(source) == []
