"""HTML for the outputs of cells: everything is escaped, and nothing depends on a style.

Renderers differ. JupyterLab keeps styles, GitHub strips them: what a reader needs is said by paragraphs, lists, tables,
bold text and signs, and colours only repeat it. Colours are either the theme's own or lie, half transparent, behind
text in the theme's colour, so that they suit a light and a dark theme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape

RIGHT, WRONG, OPEN = "✓", "✗", "?"
SIGN_COLOURS = {RIGHT: "#2E9E4F", WRONG: "#E5484D", OPEN: "#8C8C8C"}
SHARE = 75  # % of a colour, the rest being that of the text around it: darker on a white page, lighter on a dark one
# Of a `<pre>`: lines are wrapped between words, and never inside one, and are as wide as code of the package, which has
# 120 columns, behind its number or sign.
AS_CODE = (
    "max-width: 126ch; overflow-x: auto; white-space: pre-wrap; overflow-wrap: normal; word-break: normal; "
    "line-height: 1.4; font-family: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace)"
)

OPTION = re.compile(r"(?<!\S)--\w[\w-]+")  # a browser would break a line behind its hyphens
LONG, HANGING = 72, 8  # columns: of a line that may have to be wrapped, and by how much the rest of it is indented


def mixed(colour: str) -> str:
    """A colour of CSS for text, such that its contrast is at least 4.5:1 in a light and in a dark theme."""
    return f"color-mix(in srgb, {colour} {SHARE}%, currentColor)"


def prose(text: str) -> str:
    """A text in one paragraph's HTML; what stands between `backticks` is code, between ** bold."""
    parts = re.split(r"`([^`\n]+)`", text)
    for n, part in enumerate(parts):
        whole = escape(part)
        parts[n] = code(part) if n % 2 else re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", whole)
    return "".join(parts)


def code(text: str) -> str:
    """A value or a name, in a font of fixed width; a word is never broken, and an option of a command neither."""
    whole = OPTION.sub(r'<span style="white-space: nowrap">\g<0></span>', escape(text))
    return f'<code style="overflow-wrap: normal">{whole}</code>'


def paragraph(text: str, label: str = "") -> str:
    """Prose in a paragraph, after a bold label where one is given."""
    labelled = f"<b>{escape(label)}</b> " if label else ""
    return f"<p>{labelled}{prose(text)}</p>"


def paragraphs(texts: Iterable[str]) -> str:
    """A paragraph for each text."""
    return "".join(map(paragraph, texts))


def code_row(line: str, style: str = "") -> str:
    """A row of a `<pre>` for a line of HTML. Where the page is too narrow for it, the rest of it is indented."""
    text = unescape(re.sub(r"<[^>]*>", "", line))
    columns = len(text) - len(text.lstrip("+- 0123456789")) + HANGING
    style += f"; padding-left: {columns}ch; text-indent: -{columns}ch" if len(text) > LONG else ""
    return f'<span style="display: block{style}">{line}\n</span>' if style else f"{line}\n"


def headline(text: str) -> str:
    """A bold line; a tick, a cross or a question mark that it begins with gets its colour."""
    sign, rest = (text[0], text[1:]) if text[:1] in SIGN_COLOURS else ("", text)
    coloured = f'<span style="color: {mixed(SIGN_COLOURS[sign])}">{sign}</span>' if sign else ""
    return f"<p><b>{coloured}{prose(rest)}</b></p>"


def bullets(texts: Iterable[str]) -> str:
    """A list, each item in prose; empty for none."""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def folded(summary: str, inside: str, is_open: bool = False) -> str:
    """HTML that unfolds under a line of text."""
    return f"<details{' open' * is_open}><summary>{escape(summary)}</summary>{inside}</details>"


def values(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and their values, the values in a font of fixed width; empty for no rows."""
    left = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
    lines = [f"<tr><th {left}>{escape(name)}</th><td {left}>{code(value)}</td></tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>" if lines else ""
