"""HTML for the outputs of cells: everything is escaped, and nothing depends on a style, as GitHub strips them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

RIGHT, WRONG, OPEN = "✓", "✗", "?"


def prose(text: str) -> str:
    """A text in one paragraph's HTML; what stands between `backticks` is code, between ** bold."""
    parts = [re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escape(part)) for part in re.split(r"`([^`\n]+)`", text)]
    parts[1::2] = map(code, re.findall(r"`([^`\n]+)`", text))
    return "".join(parts)


def code(text: str) -> str:
    """A value or a name, in a font of fixed width; a word is never broken."""
    return f'<code style="overflow-wrap: normal">{escape(text)}</code>'


def paragraph(text: str, label: str = "") -> str:
    """Prose in a paragraph, after a bold label where one is given."""
    return f"<p>{f'<b>{escape(label)}</b> ' if label else ''}{prose(text)}</p>"


def headline(text: str) -> str:
    """A bold line."""
    return f"<p><b>{prose(text)}</b></p>"


def bullets(texts: Iterable[str]) -> str:
    """A list, each item in prose; empty for none."""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def values(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and their values, the values in a font of fixed width; empty for no rows."""
    left = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
    lines = [f"<tr><th {left}>{escape(name)}</th><td {left}>{code(value)}</td></tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>" if lines else ""
