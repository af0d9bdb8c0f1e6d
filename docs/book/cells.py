"""What a page shows of the cells of a notebook, so that it reads well without Jupyter."""

import json
import re
from typing import Any

from bs4 import BeautifulSoup

WIDGET = "application/vnd.jupyter.widget-view+json"
NOTEBOOK_LINK = re.compile(r'(<a\b[^>]*\bhref=")(?!\w+:)([^"#]*)\.ipynb((?:#[^"]*)?")')
MODULE_LINK = re.compile(r"\]\(\.\./(rosecourse/[\w/]+)\.py\)")
FRAME = 'class="dataframe"'  # how pandas marks its tables
WORDS = re.compile(r"\s*`?(?!nan\b)[^\W\d_]", re.IGNORECASE)  # a cell that begins with a letter
MOST_LINES = 24  # of code that is shown unfolded
FOLDED = "hide-input"  # myst-nb's tag


def without_widgets(output: dict[str, Any]) -> None:
    """Leave the picture or the text that an output has beside a widget, since a page has no kernel."""
    if len(output["data"]) > 1:
        output["data"].pop(WIDGET, None)


def with_page_links(output: dict[str, Any]) -> None:
    """Let links of an HTML output to notebooks lead to their pages."""
    html = output["data"].get("text/html")
    if html is not None:
        output["data"]["text/html"] = NOTEBOOK_LINK.sub(r"\1\2.html\3", "".join(html))


def with_words_left(output: dict[str, Any]) -> None:
    """Mark the columns of a data frame that have words, which begin on the left, while numbers end on the right."""
    html = "".join(output["data"].get("text/html", ""))
    if FRAME not in html:
        return
    page = BeautifulSoup(html, "html.parser")
    rows = [row.find_all(["th", "td"]) for row in page.select("tr")]
    widest = max(map(len, rows))
    for column in zip(*(row for row in rows if len(row) == widest), strict=True):
        if any(cell.name == "td" and WORDS.match(cell.get_text()) for cell in column):
            for cell in column:
                cell["class"] = "words"
    output["data"]["text/html"] = str(page)


def with_module_links(text: str) -> str:
    """Let links of Markdown to modules of the package, whose files are not in the book, lead to their docstrings."""
    return MODULE_LINK.sub(lambda link: f"](#{link[1].replace('/', '.')})", text)


def fold_if_long(cell: dict[str, Any]) -> None:
    """Fold long code above its outputs. An exercise is there to be read."""
    tags = cell["metadata"].setdefault("tags", [])
    if len("".join(cell["source"]).splitlines()) > MOST_LINES and "exercise" not in tags:
        tags.append(FOLDED)


def as_page(source: str) -> str:
    """The JSON of a notebook, with cells and outputs that a page can show."""
    notebook = json.loads(source)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = with_module_links("".join(cell["source"]))
        elif cell["cell_type"] == "code":
            fold_if_long(cell)
        for output in cell.get("outputs", []):
            if "data" in output:
                without_widgets(output)
                with_page_links(output)
                with_words_left(output)
    return json.dumps(notebook)
