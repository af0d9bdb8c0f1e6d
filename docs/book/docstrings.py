"""Sphinx extension: the package's docstrings are plain prose, and this makes reStructuredText of them.

A line `name: what it is` describes an argument or an attribute, and what is between backticks is code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FIELD = re.compile(r"((?:\*{0,2}[A-Za-z_]\w*)(?:, \*{0,2}[A-Za-z_]\w*)*): (.*)")
SENTENCE = re.compile(r"(Raises|Returns|Yields) ")
ENDED = re.compile(r"(^|[.!?:;)`])$")
SPECIAL = re.compile(r"([\\*|_`])")
EMPHASISED = re.compile(r"((?<![\w*])\*[a-z][\w -]*\*(?![\w*]))")
INDENTED = "    "
OBJECT = re.compile(r"[A-Za-z_][\w.]*")


def code(text: str) -> str:
    """What is between backticks: a link where it is the name of something on these pages."""
    return f":py:obj:`{text}`" if OBJECT.fullmatch(text) else f"``{text}``"


def escaped(text: str) -> str:
    """Prose outside of code: `*words*` stay emphasised, and nothing else means anything."""
    pieces = EMPHASISED.split(text)
    return "".join(p if n % 2 else SPECIAL.sub(r"\\\1", p) for n, p in enumerate(pieces))


def marked_up(text: str) -> str:
    """A line of prose in reStructuredText."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick without its partner
        return escaped(text)
    # A backslash and a space: what touches code, such as the s of a plural, is text of its own.
    return "\\ ".join(code(p) if n % 2 else escaped(p) for n, p in enumerate(pieces))


def kind_of(line: str, kind: str, before: str) -> str:
    """What a line is: `blank`, `literal`, a `field`, an `item`, `more` of the one above it, or `prose`.

    kind: of the lines above it; before: the line above it.
    """
    inside = kind in ("field", "item")
    if not line.strip():
        return "blank"
    if line.startswith(INDENTED) and not inside:
        return "literal"
    if FIELD.fullmatch(line) and ENDED.search(before):
        return "field"
    if line.startswith("* "):
        return "item"
    return "more" if inside and not SENTENCE.match(line) else "prose"


def to_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText: fields become items of a list, indented lines a literal block."""
    rst: list[str] = []
    # A docstring may begin with an argument, in small letters. `Name: what it is` is the title of a module.
    kind, before = "prose", "" if "".join(lines[:1])[:1].islower() else "a title"
    for line in lines:
        now = kind_of(line, kind, before)
        if now not in (kind, "blank", "more"):
            rst += ["", "::", ""] if now == "literal" else [""]
        if now == "field":
            names, _, text = line.partition(": ")
            rst.append(f"* ``{names}``: {marked_up(text)}")
        elif now == "item":
            rst.append("* " + marked_up(line[2:]))
        elif now == "literal":
            rst.append(line)
        else:
            rst.append(("  " if now == "more" else "") + marked_up(line.strip()))
        if now == "blank":
            kind = kind if kind == "literal" else "prose"
        elif now != "more":
            kind = now
        before = line.rstrip()
    return rst


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if name.startswith("rosecourse"):
        lines[:] = to_rst(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
