"""What the book does to its sources: notebooks get the texts of their pictures, and docstrings are plain text."""

import json
import re
from html import unescape
from typing import Any

import rosecourse

MOST_LINES = 24  # of code that is shown unfolded
TITLE = re.compile(r"<svg\b[^>]*>\s*<title>(.*?)</title>", re.DOTALL)
OUTSIDE = re.compile(r"\[([^]\n]*)\]\((?:\.\./)?docs/[^)\n]*\.md[^)\n]*\)")  # a link to a document beside the book
FIELD = re.compile(r"\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}\w+)*: ")  # of a docstring: `name: what it is`


def jupyter_anchor(title: str) -> str:
    """The anchor of a heading as Jupyter makes it."""
    return title.replace(" ", "-")


def alternative_text(output: dict[str, Any]) -> str:
    """A cell's PNG has its text in the metadata of the output, an SVG in its title."""
    title = TITLE.match("".join(output.get("data", {}).get("image/svg+xml", "")))
    return unescape(title[1]) if title else output.get("metadata", {}).get("image/png", {}).get("alt", "")


def public_names() -> str:
    """A list of links, in reStructuredText."""
    return "\n".join(
        f"* :py:obj:`{name} <rosecourse.{rosecourse.MODULE_OF[name]}.{name}>`" for name in rosecourse.__all__
    )


def read_included(app: Any, path: Any, docname: str, content: list[str]) -> None:
    """Leave the words of a link that would lead out of the book."""
    content[0] = OUTSIDE.sub(r"\1", content[0])


def read_source(app: Any, docname: str, source: list[str]) -> None:
    """Fold the long code of a notebook, but for an exercise, and give its pictures texts; list the public names."""
    source[0] = OUTSIDE.sub(r"\1", source[0].replace("PUBLIC_NAMES", public_names()))
    if app.env.doc2path(docname).suffix != ".ipynb":
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        texts = " ".join(filter(None, map(alternative_text, cell.get("outputs", []))))
        cell["metadata"] |= {"mystnb": {"image": {"alt": texts}}} if texts else {}
        tags = cell["metadata"].setdefault("tags", [])
        if "".join(cell["source"]).count("\n") >= MOST_LINES and "exercise" not in tags:
            tags.append("hide-input")
    source[0] = json.dumps(notebook)


def plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring: code between `backticks`, a list of fields, indented lines as they are."""
    if "".join(lines[:1]).startswith("Alias for field number"):  # what Python says of a field of a named tuple
        lines.clear()
    text = re.sub(r"`[^`]*`", lambda code: " ".join(code[0].split()), "\n".join(lines))
    rst, inside = [], ""
    for line in text.split("\n"):
        if line.startswith("    ") and not inside:
            rst += [line] if rst[-1][:4] == "    " or (rst[-2:-1] and rst[-2][:4] == "    ") else ["::", "", line]
            continue
        begins = bool(FIELD.match(line)) or line.startswith("* ")
        if begins or line.startswith("Raises "):
            rst.append("")
        if not line or line.startswith("Raises "):
            inside = ""
        parts = enumerate(line.removeprefix("* ").split("`"))
        marked = "\\ ".join(f"``{p}``" if n % 2 else re.sub(r"([\\*|_])", r"\\\1", p) for n, p in parts).strip()
        rst.append(f"* {marked}" if begins else f"{inside}{marked}".rstrip())
        inside = "  " if begins else inside
    lines[:] = rst
