"""Sphinx extension: the pictures of cells keep their alternative texts, and each has a box of its own.

In its box a picture can be wider than a narrow page and scroll, while the sentences around it stay where they are.

A cell's PNG has its text in the metadata of the output, an SVG in its title. Each picture of a page is a file, and
myst-nb names it by a hash of its bytes: that is how a text finds its picture again.
"""

import json
import re
from binascii import a2b_base64
from hashlib import sha256
from html import unescape
from pathlib import PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

TEXTS = "alt_texts"  # of the page that is being read
TITLE = re.compile(r"<svg\b[^>]*>\s*<title>(.*?)</title>", re.DOTALL)


def texts_of(output: dict[str, Any]) -> dict[str, str]:
    """The alternative texts of an output's pictures, by the names that their files get."""
    data, found = output.get("data", {}), {}
    if "image/png" in data:
        picture = a2b_base64("".join(data["image/png"]))
        found[sha256(picture).hexdigest()] = output["metadata"].get("image/png", {}).get("alt", "")
    if "image/svg+xml" in data:
        drawing = "".join(data["image/svg+xml"])
        title = TITLE.match(drawing)
        found[sha256("\n".join(drawing.splitlines()).encode()).hexdigest()] = unescape(title[1]) if title else ""
    return found


def note_texts(app: Sphinx, docname: str, source: list[str]) -> None:
    texts: dict[str, str] = {}
    if app.env.doc2path(docname).suffix == ".ipynb":
        for cell in json.loads(source[0])["cells"]:
            for output in cell.get("outputs", []):
                texts |= texts_of(output)
    app.env.temp_data[TEXTS] = texts


def give_texts(app: Sphinx, doctree: nodes.document) -> None:
    texts = app.env.temp_data.get(TEXTS, {})
    for image in list(doctree.findall(nodes.image)):
        name = PurePosixPath(image["uri"]).stem
        if name in texts:
            image["alt"] = texts[name]
            box = nodes.container(classes=["picture"])
            image.replace_self(box)
            box += image


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", note_texts)
    app.connect("doctree-read", give_texts)
    return {"parallel_read_safe": True}
