"""Comments and docstrings as narrow as a cell of Jupyter Lab, which cuts off what is longer."""

from __future__ import annotations

import ast
from itertools import groupby
from textwrap import wrap

COLUMNS = 100  # of code that Jupyter Lab shows in a window of 1280 pixels, beside its file browser
WIDTHS = range(COLUMNS // 2, COLUMNS + 1)


def narrowed(source: str) -> str:
    """`source` with comments and docstrings of at most `COLUMNS` columns. Its code is left to a formatter.

    Only paragraphs with a longer line are wrapped. source: of a module, formatted. Raises `SyntaxError` for what is no
    Python.
    """
    in_docstring = _docstring_lines(source)
    numbered = enumerate(source.splitlines(), start=1)
    paragraphs = groupby(numbered, key=lambda line: _indent_of_text(line[1], line[0] in in_docstring))
    narrow: list[str] = []
    for prefix, numbers_and_lines in paragraphs:
        lines = [line for _, line in numbers_and_lines]
        if prefix is not None and max(map(len, lines)) > COLUMNS:
            text = " ".join(line.removeprefix(prefix) for line in lines)
            lines = _wrapped(text, prefix)
        narrow += lines
    return "\n".join(narrow) + "\n"


def _wrapped(text: str, prefix: str) -> list[str]:
    """Lines of about one length: the fewest that do, and as narrow as so many can be, so that no word stands alone."""
    wraps = [wrap(text, width, initial_indent=prefix, subsequent_indent=prefix) for width in WIDTHS]
    return min(wraps, key=len)  # of equals the first, which is the narrowest


def _docstring_lines(source: str) -> set[int]:
    """The numbers of the lines that docstrings stand on; the first line is 1."""
    numbers: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            numbers.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return numbers


def _indent_of_text(line: str, in_docstring: bool) -> str | None:
    """What stands in front of the text of a line of a docstring or a comment; None for all other lines."""
    text = line.lstrip()
    space = line[: len(line) - len(text)]
    if in_docstring:
        return None if text in ("", '"""') else space
    return f"{space}# " if text.startswith("# ") else None
