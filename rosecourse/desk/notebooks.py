"""Notebooks as files: what their heads say, and whether two of them have the same cells."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .places import END, START

PATTERN = "[0-9][0-9][0-9]_*.ipynb"


@dataclass(frozen=True)
class Head:
    """What the first cell of a lesson's notebook says. reading, exercise, hunt: minutes; 0 where there is none."""

    number: str
    title: str
    file: str
    reading: int
    exercise: int
    hunt: int


def notebooks_in(folder: Path) -> list[Path]:
    """The course's notebooks in a folder by their numbers, the start page first. Other notebooks are left out."""
    return sorted(folder.glob(PATTERN))


def lessons_in(folder: Path) -> list[Head]:
    """The heads of the lessons in a folder, in order; the start page and the page that looks back are none."""
    return [head_of(path) for path in notebooks_in(folder) if path.name not in (START, END)]


def head_of(path: Path) -> Head:
    """The head of a lesson. Raises `OSError` or `ValueError` for a file that cannot be read."""
    text = source_of(cells_of(path)[0])
    number, _, title = text.splitlines()[0].removeprefix("# ").partition(" · ")
    return Head(
        number,
        title,
        path.name,
        *(_minutes(text, what) for what in (r"minutes to read", r"minutes for the exercise", r"for the bug\s+hunt")),
    )


def _minutes(text: str, what: str) -> int:
    found = re.search(rf"(\d+) {what}", text)
    return int(found[1]) if found else 0


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook. Raises `OSError` or `ValueError` for a file that cannot be read."""
    document = json.loads(path.read_text(encoding="utf-8"))
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list) or not cells or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError(f"{path.name} is no notebook")
    return cells


def source_of(cell: dict[str, Any]) -> str:
    """The text of a cell, which a file may hold as a list of lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


@dataclass(frozen=True)
class Digests:
    """Checksums of a notebook: of the whole file, and of what is written in its cells.

    Running a notebook changes its outputs and the numbers of its cells, and Jupyter adds an empty cell at its end.
    `sources` is the same after that.
    """

    file: str
    sources: str

    @classmethod
    def of(cls, path: Path) -> Digests:
        """Of a file; one that is no notebook has no sources but itself. Raises `OSError` if it cannot be read."""
        whole = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            written = [(cell.get("cell_type"), source_of(cell)) for cell in cells_of(path)]
        except (ValueError, TypeError):
            return cls(whole, whole)
        text = json.dumps([cell for cell in written if cell[1].strip()])
        return cls(whole, hashlib.sha256(text.encode()).hexdigest())
