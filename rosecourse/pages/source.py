"""Source as a notebook shows it: coloured by Pygments, in colours of the page's theme."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from .html import AS_CODE, code_row, mixed
from .narrow import narrowed

# JupyterLab's own colours, which follow its theme, mixed with that of the text because some are faint in one of them;
# elsewhere bold and italic. JupyterLab has a style sheet for Pygments' classes too, which has to give way. Another page
# that has one, such as a book, keeps it: `:where` gives way to that.
COLOURS = {
    (".k", ".kn", ".kc"): ("keyword", "font-weight: bold"),
    (".ow",): ("operator", "font-weight: bold"),
    (".c1",): ("comment", "font-style: italic"),
    (".sd",): ("string", "font-style: italic"),
    (".s1", ".s2", ".sa", ".si"): ("string", ""),
    (".mi", ".mf"): ("number", ""),
    (".nf", ".nc", ".fm"): ("def", "font-weight: bold"),
    (".nd",): ("meta", ""),
}
RULES = [
    f":where(.rc-code) :is({', '.join(classes)}), .jp-OutputArea .rc-code :is({', '.join(classes)}) "
    f"{{ color: {mixed(f'var(--jp-mirror-editor-{name}-color, currentColor)')}; {more} }}"
    for classes, (name, more) in COLOURS.items()
]
STYLE = "\n".join(["<style>", *RULES, "</style>"])
NUMBER = '<span style="user-select: none; opacity: 0.7">{:3}  </span>'  # not copied with the code


def coloured(source: str, numbered: bool = False) -> str:
    """Python as HTML, in a `<pre>`; a line that is told alone may be any piece of a program."""
    lines = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).splitlines()
    if numbered:
        lines = [f"{NUMBER.format(n)}{line}" for n, line in enumerate(lines, 1)]
    text = "".join(map(code_row, lines))
    return f'{STYLE}<div class="rc-code highlight" style="background: none"><pre style="{AS_CODE}">{text}</pre></div>'


@dataclass(frozen=True, repr=False)
class Listing:
    """Source that a notebook shows in colours. numbered: whether each line has its number, from 1."""

    source: str
    numbered: bool = False

    def __str__(self) -> str:
        if not self.numbered:
            return self.source
        return "\n".join(f"{n:3}  {line}".rstrip() for n, line in enumerate(self.source.splitlines(), 1))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return coloured(self.source, self.numbered)


def listing(*of: Any) -> Listing:
    """The source of functions, methods and classes, one after the other, as they are in this very program.

    A text is taken as the source itself. Comments and docstrings are as narrow as a cell.
    """
    return Listing("\n".join(_narrow(one if isinstance(one, str) else dedent(inspect.getsource(one))) for one in of))


def _narrow(source: str) -> str:
    try:
        return narrowed(source)
    except SyntaxError:  # a piece of a program
        return source
