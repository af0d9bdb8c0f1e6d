"""The notebooks and the learner's copy of them: `notebooks/` and `my/`, side by side; and what is in such a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError

NOTEBOOKS, DESK = "notebooks", "my"
START = "000_start_here.ipynb"
END = "072_the_whole_ladder.ipynb"  # it looks back: no rung of the ladder, and nothing to build in it


class Head(NamedTuple):
    """What the first cell of a notebook says. minutes: to read, for the exercise and for the bug hunt, together."""

    number: str
    link: str  # with number and title, in markdown
    title: str
    minutes: int


def repository(folder: Path) -> Path:
    """The nearest folder, this one or one above it, that holds the notebooks. Raises `ConfigError` if there is none."""
    for place in (folder, *folder.parents):
        if (place / NOTEBOOKS / START).is_file():
            return place
    raise ConfigError(f"{folder} is not in the course's repository: run this where {NOTEBOOKS}/{START} is, or below")


def desk_here() -> Path | None:
    """The learner's folder, if this process works in it, as the kernel of a notebook in it does; None elsewhere."""
    folder = Path.cwd()
    return folder if folder.name == DESK and (folder.parent / NOTEBOOKS / START).is_file() else None


def notebooks_in(folder: Path) -> list[Path]:
    """The course's notebooks in a folder by their numbers, the start page first. Other notebooks are left out."""
    return sorted(folder.glob("[0-9][0-9][0-9]_*.ipynb"))


def heads_in(folder: Path) -> list[Head]:
    """The heads of a folder's notebooks but the start page, in order. Raises `OSError` or `ValueError`."""
    heads = []
    for path in notebooks_in(folder)[1:]:  # after the start page
        text = source_of(cells_of(path)[0])
        number, _, title = text.splitlines()[0].removeprefix("# ").partition(" · ")
        minutes = re.findall(r"(\d+) (?:minutes to read|minutes for the exercise|for the bug\s+hunt)", text)
        heads.append(Head(number, f"[{number} {title}]({path.name})", title, sum(map(int, minutes))))
    return heads


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook. Raises `OSError` or `ValueError` for a file that cannot be read."""
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def source_of(cell: dict[str, Any]) -> str:
    """The text of a cell, which a file may hold as a list of lines."""
    return "".join(cell.get("source", ""))
