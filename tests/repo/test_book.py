"""What `make book` makes of notebooks and docstrings."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.scripts import script

hooks = script("book/hooks")


def pages(cells):
    """Tags and settings of each cell as the book has them."""
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: Path(name)))
    source = [json.dumps({"cells": cells})]
    hooks.read_source(app, "x.ipynb", source)
    return [(cell["metadata"]["tags"], cell["metadata"].get("mystnb")) for cell in json.loads(source[0])["cells"]]


def test_book_folds_long_code_and_no_exercise():
    code = {"cell_type": "code", "metadata": {}, "source": "x = 1\n" * 40}
    exercise = {**code, "metadata": {"tags": ["exercise"]}}
    short = {**code, "metadata": {}, "source": "x = 1\n"}
    assert [tags for tags, _ in pages([code, exercise, short])] == [["hide-input"], ["exercise"], []]


def test_book_keeps_the_alternative_texts_of_pictures():
    png = {"data": {"image/png": ""}, "metadata": {"image/png": {"alt": "a line"}}}
    svg = {"data": {"image/svg+xml": ["<svg width='1'>\n", "<title>a &amp; b</title>"]}}
    cell = {"cell_type": "code", "metadata": {}, "source": "x", "outputs": [png, svg]}
    assert pages([cell])[0][1] == {"image": {"alt": "a line a & b"}}


def test_link_out_of_the_book_leaves_its_words():
    text = ["[a](docs/figures.md#b), [c](../docs/d.md), [e](notebooks/f.ipynb), ![g](docs/h.png)"]
    hooks.read_included(None, None, "", text)
    assert text == ["a, c, [e](notebooks/f.ipynb), ![g](docs/h.png)"]


@pytest.mark.parametrize(
    ("docstring", "rst"),
    [
        ("Text.\n\nname: of it,\nlong.\nRaises `E`.", "Text.\n\n\n* name: of it,\n  long.\n\nRaises \\ ``E``\\ ."),
        ("As:\n\n    a = b_\n\n    c", "As:\n\n::\n\n    a = b_\n\n    c"),
        ("It is *free*, `a * b` or 2 * a_.", r"It is \*free\*, \ ``a * b``\  or 2 \* a\_."),
    ],
)
def test_docstring_becomes_text(docstring, rst):
    lines = docstring.split("\n")
    hooks.plain_text(None, "", "", None, None, lines)
    assert lines == rst.split("\n")
