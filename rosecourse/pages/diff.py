"""A unified diff as HTML: a row for each line, told by its sign as well as by its colour."""

from __future__ import annotations

from html import escape

from .html import AS_CODE, code_row

# Half transparent, behind text in the theme's own colour: the contrast of the text stays above 7:1 on a white page and
# on a black one.
BEHIND = {"+": "rgba(46, 160, 67, 0.22)", "-": "rgba(248, 81, 73, 0.22)", "@": "rgba(128, 128, 128, 0.16)"}


def diff_html(diff: str) -> str:
    """A `<pre>` in which each line of a unified diff is a row; without styles it is the text of the diff."""
    return f'<pre style="{AS_CODE}">{"".join(map(_row, diff.splitlines()))}</pre>'


def _row(line: str) -> str:
    if line.startswith(("+++", "---")):
        return code_row(f"<b>{escape(line)}</b>")
    return code_row(escape(line), f"; background-color: {BEHIND[line[0]]}" if line[:1] in BEHIND else "")
