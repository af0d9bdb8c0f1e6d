"""Sphinx extension: the notebooks as pages, with the anchors and the links that they have in Jupyter.

Sphinx reads one folder. So the notebooks are copied into it, all of them, under the path that they have in the
repository.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from cells import as_page
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def copy_notebooks(app: Sphinx) -> None:
    """Copy the notebooks with their times, by which Sphinx sees what has changed, and remove those that are gone."""
    copies = Path(app.srcdir) / NOTEBOOKS.name
    copies.mkdir(exist_ok=True)
    for copy in copies.iterdir():
        if not (NOTEBOOKS / copy.name).exists():
            copy.unlink()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy2(notebook, copies)


def jupyter_anchor(title: str) -> str:
    """The anchor of a heading as Jupyter makes it: its text with hyphens for spaces."""
    return title.replace(" ", "-")


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    if app.env.doc2path(docname).suffix == ".ipynb":
        source[0] = as_page(source[0])


class SectionOf(SphinxDirective):
    """The text below a heading of a notebook: `section-of`, with the notebook and the heading.

    A link to a heading of the notebook leads to its page.
    """

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        name, heading = self.arguments
        self.env.note_dependency(NOTEBOOKS / name)
        for cell in json.loads((NOTEBOOKS / name).read_text())["cells"]:
            title, _, text = "".join(cell["source"]).partition("\n")
            if cell["cell_type"] == "markdown" and title.lstrip("# ") == heading:
                return self.parse_text_to_nodes(text.replace("](#", f"](/{NOTEBOOKS.name}/{name}#"))
        raise self.error(f"{name} has no Markdown cell that begins with the heading {heading!r}")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("section-of", SectionOf)
    app.connect("builder-inited", copy_notebooks)
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True}
