"""The learner's parts that have passed their check, kept in `my/parts/`: each can be the *before* of a later lesson."""

from __future__ import annotations

import inspect
import linecache

from ...checks import require
from ...desk.notebooks import DESK, desk_here
from ...records.files import write_whole
from ..checks.passed import PASSED
from ..course import course_of
from .part_file import load_part

PARTS = "parts"


def keep_part(part: type, number: str) -> None:
    """Store the cell or the file of a part that has passed, if this process works in the learner's folder."""
    folder, methods = desk_here(), [one for one in vars(part).values() if inspect.isfunction(one)]
    if folder is None or number not in PASSED or not methods:
        return
    text = "".join(linecache.getlines(methods[0].__code__.co_filename))
    if text:
        (folder / PARTS).mkdir(exist_ok=True)
        write_whole(folder / PARTS / f"l{number}.py", text.encode())


def kept_part(number: str) -> type:
    """The learner's part of a lesson, as it was measured last. Raises `ConfigError` where none is kept."""
    folder = desk_here()
    path = folder / PARTS / f"l{number}.py" if folder else None
    remedy = f"let it pass its check and run it in {DESK}/, your copy of the notebooks"
    require(path is not None and path.is_file(), f"no part of yours is kept for lesson {number}: {remedy}")
    assert path is not None
    return load_part(path, course_of(number).exercise.name)
