"""Parts for `check`: those of the course with a few words of their source replaced, and whole ones in files."""

import importlib.util
import inspect
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

from rosecourse import lesson


@dataclass(frozen=True)
class Wrong:
    """A fault, and how a part gets it.

    lessons: those whose part can have it. replaced: pairs of texts; each of the first must be in the source.
    """

    fault: str
    lessons: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]
    correct: bool = False  # right, but without the lesson's idea

    def __str__(self) -> str:
        return self.fault


def part_of(number: str) -> type:
    """The course's part of a lesson."""
    rung = lesson(number)
    return getattr(rung.after, rung.changes[0])


def damaged(number: str, wrong: Wrong) -> type:
    """The course's part of a lesson with a fault in it."""
    part = part_of(number)
    source = inspect.getsource(part)
    for old, new in wrong.replaced:
        assert old in source, f"{wrong.fault}: the part of lesson {number} has no {old!r}"
        source = source.replace(old, new)
    name = f"<{wrong.fault}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names = dict(vars(sys.modules[part.__module__]))
    exec(compile(source, name, "exec"), names)
    return names[part.__name__]


def cases(table: list[Wrong]) -> list[tuple[str, Wrong]]:
    """(lesson, fault) of all faults."""
    return [(number, wrong) for wrong in table for number in wrong.lessons]


# Written by eyes that had not seen the check; the first line of each says what it is.
WHOLE = Path(__file__).parent / "whole"


def whole_parts(kind: str) -> list[Path]:
    """Those of a kind: "right", or wrong in a way "which a CPU can show"."""
    return [path for path in sorted(WHOLE.glob("*.py")) if path.read_text().splitlines()[0].endswith(kind)]


def load(path: Path) -> type:
    spec = importlib.util.spec_from_file_location(f"part_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MyBlockTables if path.name.startswith("036") else module.MyKVAppend
