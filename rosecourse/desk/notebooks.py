"""The notebooks and the learner's copy of them: `notebooks/` and `my/`, side by side; and what is in such a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError

NOTEBOOKS, DESK = "notebooks", "my"
HUNTS, APPENDIX = "hunts", "appendix"  # folders in both
START = "000_start_here.ipynb"
END = "072_the_whole_ladder.ipynb"  # it looks back: no rung of the ladder, and nothing to build in it


class Head(NamedTuple):
    """What the first cell of a page says of a lesson.

    minutes: to read, for the exercise and for the bug hunt, together. Of lessons that share a page, the first has the
    minutes that the page takes.
    """

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
    """The learner's folder, if this process works in it or in one of its folders, as a kernel does; None elsewhere."""
    here = Path.cwd()
    desks = [folder for folder in (here, here.parent) if folder.name == DESK]
    return next((desk for desk in desks if (desk.parent / NOTEBOOKS / START).is_file()), None)


def notebooks_in(folder: Path) -> list[Path]:
    """The lessons in a folder by their numbers, the start page first. Other notebooks are left out."""
    return sorted(folder.glob("[0-9][0-9][0-9]_*.ipynb"))


def all_notebooks_in(folder: Path) -> list[Path]:
    """The lessons in a folder, and then its bug hunts and its appendix."""
    more = [path for name in (HUNTS, APPENDIX) for path in sorted((folder / name).glob("*.ipynb"))]
    return notebooks_in(folder) + more


def short_name(path: Path) -> str:
    """What a learner calls the notebook at this path in the folder: `038`, `hunts/038` or `appendix/statistics`."""
    return path.with_name(re.sub(r"^(\d{3})_.*", r"\1", path.stem)).as_posix()


def heads_in(folder: Path) -> list[Head]:
    """The heads of a folder's lessons but the start page, in order. Raises `OSError` or `ValueError`."""
    heads = []
    for path in notebooks_in(folder)[1:]:  # after the start page
        text = source_of(cells_of(path)[0])
        for number, title in re.findall(r"(?m)^(?:# |\*\*)(\d{3}) · ([^*\n]+)", text):
            text += "".join(source_of(cells_of(hunt)[0]) for hunt in folder.glob(f"{HUNTS}/{number}_*.ipynb"))
            minutes = re.findall(r"(\d+) minutes (?:to read|for the exercise|to hunt)", text)
            heads.append(Head(number, f"[{number} {title}]({path.name})", title, sum(map(int, minutes))))
            text = ""
    return heads


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook. Raises `OSError` or `ValueError` for a file that cannot be read."""
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def source_of(cell: dict[str, Any]) -> str:
    """The text of a cell, which a file may hold as a list of lines."""
    return "".join(cell.get("source", ""))
