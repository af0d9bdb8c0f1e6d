"""The outputs of a notebook as a renderer shows them that allows no styles and runs no scripts, as GitHub does."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup

SHOWN_FIRST = ("text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain")
FENCED = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """What is left of one output. kind: the type that is shown. page: of HTML, without styles and scripts."""

    cell: str
    source: str
    kind: str
    text: str
    metadata: dict
    page: BeautifulSoup | None = None

    @property
    def diff(self) -> str:
        """The text of the diff in it, as a reader sees it; empty if there is none."""
        if self.kind == "text/markdown":
            return "".join(FENCED.findall(self.text))
        pres = self.page.find_all("pre") if self.page else []
        return "".join(pre.get_text() for pre in pres if re.search(r"^@@ ", pre.get_text(), re.MULTILINE))


def shown_outputs(path: Path) -> list[Shown]:
    """All outputs of a notebook but printed text, in their order."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            data = {kind: _text(value) for kind, value in output.get("data", {}).items()}
            if data:
                kind = next((kind for kind in SHOWN_FIRST if kind in data), "nothing")
                page = stripped(data[kind]) if kind == "text/html" else None
                source = "".join(cell["source"])
                found.append(Shown(cell["id"], source, kind, data.get(kind, ""), output["metadata"], page))
    return found


def stripped(html: str) -> BeautifulSoup:
    """HTML without styles, classes and scripts."""
    page = BeautifulSoup(html, "html.parser")
    for tag in page.find_all(["style", "script", "link"]):
        tag.decompose()
    for tag in page.find_all(True):
        tag.attrs = {name: value for name, value in tag.attrs.items() if name not in ("style", "class", "id")}
    return page


def _text(value: object) -> str:
    return "".join(value) if isinstance(value, list) else str(value)
