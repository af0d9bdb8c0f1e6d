"""The learner's copy of the notebooks: made once, renewed while it is unchanged, and never overwritten otherwise.

A copy counts as changed when something is written in it, a cell or a word. One that was only run has other outputs and
the same sources. `my/.course/` holds what each copy was made from. Where that is missing, a copy that differs from the
lesson may be the learner's work, and is left alone.
"""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

from ..checks import shown
from ..errors import LessonError
from ..records.files import write_whole
from .notebooks import DESK, NOTEBOOKS, all_notebooks_in, short_name, source_of

MADE_FROM = ".course"
NEW, RENEWED = "new", "renewed, as nothing was written there"
LEFT = "left alone, as it may hold your work, though the course has something newer"
OPEN = "if it is open in Jupyter, its tab still shows the old one: close that without saving, and open it again"


def renew(root: Path) -> list[str]:
    """Make the copies that are missing and renew those that are unchanged; returns what there is to tell, as lines.

    root: the folder of `notebooks/` and `my/`. Raises `OSError` where a file cannot be read or written.
    """
    first = not (root / DESK).exists()
    states = {name: _renewed(path, root) for name, path in _notebooks(root).items()}
    if first:
        return [f"{DESK}/ is your copy of the notebooks: work there, and git leaves it alone"]
    lines = []
    for state in (NEW, RENEWED, LEFT):
        if names := [name for name, found in states.items() if found == state]:
            remedy = f"; `make reset LESSON={names[0]}` brings the course's and keeps yours beside it"
            lines.append(f"{DESK}/: {', '.join(names)} {state}{remedy if state == LEFT else ''}")
    return lines


def reset(root: Path, number: str) -> str:
    """Bring one notebook back as the course has it, and keep the old one beside it; returns what was done.

    number: a short name, such as `038` or `hunts/038`; 38 is 038. Raises `LessonError` for a name that no notebook
    has, and `OSError` where a file cannot be written.
    """
    known = _notebooks(root)
    name = number.zfill(3) if number.isdigit() else number
    if name not in known:
        told = f"there is no lesson {shown(number)}: give one of {', '.join(known)}"
        raise LessonError(f"{told}, as in `make reset LESSON=038`")
    path, desk, old = known[name], root / DESK, ""
    if (desk / path).exists() and (desk / path).read_bytes() != (root / NOTEBOOKS / path).read_bytes():
        kept = next(kept for n in count(1) if not (desk / (kept := f"{name}_yours_{n}.ipynb")).exists())
        (desk / path).rename(desk / kept)
        old = f"; the old one is {DESK}/{kept}, and your progress stays ticked; {OPEN}"
    _renewed(path, root)
    return f"{DESK}/{path.as_posix()} is as the course has it{old}"


def _notebooks(root: Path) -> dict[str, Path]:
    """The course's notebooks by their short names, each as its path in `notebooks/` and in `my/`."""
    folder = root / NOTEBOOKS
    return {short_name(path): path for path in (path.relative_to(folder) for path in all_notebooks_in(folder))}


def _renewed(path: Path, root: Path) -> str:
    """Bring one copy up to date where that loses nothing; returns what there is to tell of it."""
    original, copy, made = (root / folder / path for folder in (NOTEBOOKS, DESK, f"{DESK}/{MADE_FROM}"))
    course, now, before = (path.read_bytes() if path.exists() else b"" for path in (original, copy, made))
    written, theirs, mine = _written(before), _written(course), _written(now)
    if copy.exists() and mine != theirs and not (mine == written and made.exists()):
        return "" if theirs == written else LEFT
    for one in (copy, made):
        one.parent.mkdir(parents=True, exist_ok=True)
    if now != course and (mine != theirs or now == before):  # else the outputs of a run here say more
        write_whole(copy, course)
    if before != course:
        write_whole(made, course)
    return NEW if not now else "" if mine == theirs else RENEWED


def _written(content: bytes) -> object:
    """The cells of a notebook that hold something; of a file that is no notebook, its content."""
    try:
        cells = [(cell.get("cell_type"), source_of(cell)) for cell in json.loads(content)["cells"]]
        return [cell for cell in cells if cell[1].strip()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return content
