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
from .notebooks import DESK, NOTEBOOKS, notebooks_in, source_of

MADE_FROM = ".course"
NEW, RENEWED = "new", "renewed, as nothing was written there"
LEFT = "left alone, as it may hold your work, though the course has something newer"
OPEN = "if it is open in Jupyter, its tab still shows the old one: close that without saving, and open it again"


def renew(root: Path) -> list[str]:
    """Make the copies that are missing and renew those that are unchanged; returns what there is to tell, as lines.

    root: the folder of `notebooks/` and `my/`. Raises `OSError` where a file cannot be read or written.
    """
    first = not (root / DESK).exists()
    states = {path.name[:3]: _renewed(path, root / DESK) for path in notebooks_in(root / NOTEBOOKS)}
    if first:
        return [f"{DESK}/ is your copy of the notebooks: work there, and git leaves it alone"]
    lines = []
    for state in (NEW, RENEWED, LEFT):
        if names := [name for name, found in states.items() if found == state]:
            remedy = f"; `make reset LESSON={names[0]}` brings the course's and keeps yours beside it"
            lines.append(f"{DESK}/: {', '.join(names)} {state}{remedy if state == LEFT else ''}")
    return lines


def reset(root: Path, number: str) -> str:
    """Bring one lesson's notebook back as the course has it, and keep the old one beside it; returns what was done.

    number: 38 is 038. Raises `LessonError` for a number that no notebook has, and `OSError` where a file cannot be
    written.
    """
    known = {path.name[:3]: path for path in notebooks_in(root / NOTEBOOKS)}
    original = known.get(number and number.zfill(3))
    if original is None:
        told = f"there is no lesson {shown(number)}: give one of {', '.join(known)}"
        raise LessonError(f"{told}, as in `make reset LESSON=038`")
    copy, old = root / DESK / original.name, ""
    if copy.exists() and copy.read_bytes() != original.read_bytes():
        names = (copy.with_name(f"{copy.name[:3]}_yours_{n}.ipynb") for n in count(1))
        kept = copy.rename(next(name for name in names if not name.exists()))
        old = f"; the old one is {DESK}/{kept.name}, and your progress stays ticked; {OPEN}"
    _renewed(original, root / DESK)
    return f"{DESK}/{copy.name} is as the course has it{old}"


def _renewed(original: Path, folder: Path) -> str:
    """Bring one copy up to date where that loses nothing; returns what there is to tell of it."""
    copy, made = folder / original.name, folder / MADE_FROM / original.name
    course, now, before = (path.read_bytes() if path.exists() else b"" for path in (original, copy, made))
    written, theirs, mine = _written(before), _written(course), _written(now)
    if copy.exists() and mine != theirs and not (mine == written and made.exists()):
        return "" if theirs == written else LEFT
    made.parent.mkdir(parents=True, exist_ok=True)
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
