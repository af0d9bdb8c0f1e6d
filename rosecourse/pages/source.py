"""Source and diffs as a notebook shows them: in the classes of Pygments, and as narrow as a cell."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent, wrap
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import DiffLexer, PythonLexer

COLUMNS = 100  # of code that Jupyter Lab shows in a window of 1280 pixels, beside its file browser
PRE = "max-width: 126ch; overflow-x: auto; white-space: pre-wrap; word-break: normal; line-height: 1.4"
# Half transparent, behind text in the theme's own colour: it can be read on a white page and on a black one.
BEHIND = {"gi": "rgba(46, 160, 67, 0.22)", "gd": "rgba(248, 81, 73, 0.22)"}
RULES = "".join(f".rc-code .{kind} {{ background: {colour}; color: inherit }}" for kind, colour in BEHIND.items())


def coloured(source: str, lexer: Any = None) -> str:
    """Python as HTML, in a `<pre>`; without styles it is the text itself. lexer: of Pygments, for another language."""
    text = highlight(source, lexer or PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return f'<div class="rc-code highlight"><pre style="{PRE}">{text}</pre></div>'


def diff_html(diff: str) -> str:
    """A unified diff as HTML: a line is told by its sign, and by the colour behind it."""
    return f"<style>{RULES}</style>{coloured(diff, DiffLexer(stripnl=False))}"


@dataclass(frozen=True, repr=False)
class Listing:
    """Source that a notebook shows in colours."""

    source: str

    def __str__(self) -> str:
        return self.source

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return coloured(self.source)


def listing(*of: Any) -> Listing:
    """The source of functions, methods and classes, or a text, one after the other, as narrow as a cell."""
    return Listing("\n".join(narrowed(one if isinstance(one, str) else dedent(inspect.getsource(one))) for one in of))


def narrowed(source: str) -> str:
    """`source` with comments and docstrings of at most `COLUMNS` columns; its code is left to a formatter.

    Only paragraphs with a longer line are wrapped, and a text that is no Python stays as it is.
    """
    try:
        inside = _docstring_lines(source)
    except SyntaxError:
        return source
    narrow: list[str] = []
    numbered = enumerate(source.splitlines(), start=1)
    for prefix, found in groupby(numbered, key=lambda line: _indent_of_text(line[1], line[0] in inside)):
        lines = [line for _, line in found]
        if prefix is not None and max(map(len, lines)) > COLUMNS:
            text = " ".join(line.removeprefix(prefix) for line in lines)
            widths = range(COLUMNS // 2, COLUMNS + 1)
            wraps = [wrap(text, width, initial_indent=prefix, subsequent_indent=prefix) for width in widths]
            lines = min(wraps, key=len)  # of the shortest the narrowest, so that no word stands alone
        narrow += lines
    return "\n".join(narrow) + "\n"


def _docstring_lines(source: str) -> set[int]:
    """The numbers of the lines that docstrings stand on; the first line is 1."""
    numbers: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            numbers.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return numbers


def _indent_of_text(line: str, in_docstring: bool) -> str | None:
    """What stands in front of the text of a line of a docstring or a comment; None for all other lines."""
    match = re.match(r' *(?=\S)(?!"""$)' if in_docstring else r" *# ", line)
    return match[0] if match else None
