"""How the wrong parts are made that `check` is fed: a part of the course, with a few words of its source replaced."""

import inspect
import linecache
import sys
from dataclasses import dataclass

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


LOW_BITS = Wrong("positions by their low bits", ("060",), (("all(pos == pos0", "all(pos % 32 == pos0 % 32"),))


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
