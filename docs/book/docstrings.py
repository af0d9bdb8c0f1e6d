"""Sphinx extension: the package's docstrings are plain prose, and this makes reStructuredText of them.

`name: what it is` describes an argument or an attribute, and what is between backticks is code. A class has its fields
described, too, by the comments behind them.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

FIELD = re.compile(r"((?:\*{0,2}[A-Za-z_]\w*)(?:, \*{0,2}[A-Za-z_]\w*)*): (.*)")
SENTENCE = re.compile(r"(Raises|Returns|Yields) ")
ENDED = re.compile(r"(^|[.!?:;)`])$")
SPECIAL = re.compile(r"([\\*|_`])")
EMPHASISED = re.compile(r"((?<![\w*])\*[a-z][\w -]*\*(?![\w*]))")
INDENTED = "    "
OBJECT = re.compile(r"[A-Za-z_][\w.]*")
COMMENTED = re.compile(r"(?m)^    (\w+): [^#\n]*  # (.+)$")


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


def names_in(obj: Any) -> set[str]:
    """What a docstring may describe: the parameters of a function or a class, and the attributes of a class."""
    try:
        parameters = set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        parameters = set()
    return parameters | set(getattr(obj, "__annotations__", ()))


def a_line_each(lines: list[str], names: Iterable[str]) -> list[str]:
    """The lines of a docstring, with a new line where the description of one of the names begins.

    It begins behind a sentence or a semicolon.
    """
    if not names:
        return lines
    one = rf"(?:{'|'.join(map(re.escape, sorted(names)))})\b"
    field = rf"{one}(?:, {one})*:"
    text = re.sub(rf"(?<=[.!?;])(?: |\n *)(?={field}\s)", "\n", "\n".join(lines))
    return re.sub(rf"(?m)^({field})\n *(?=\S)", r"\1 ", text).split("\n")


def commented(obj: type, lines: list[str]) -> list[str]:
    """`name: what it is.` for the fields of a class that have a comment, and no words in its docstring."""
    try:
        source = inspect.getsource(obj)
    except (OSError, TypeError):  # a class that no file has
        return []
    own, told = vars(obj).get("__annotations__", ()), "\n".join(lines)
    found = [(name, text) for name, text in COMMENTED.findall(source) if name in own and f"{name}:" not in told]
    return [f"{name}: {text}" if ENDED.search(text) else f"{name}: {text}." for name, text in found]


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if not name.startswith("rosecourse"):
        return
    fields = ["", *commented(obj, lines)] if inspect.isclass(obj) else []
    lines[:] = to_rst(a_line_each([*lines, *fields], names_in(obj)))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
