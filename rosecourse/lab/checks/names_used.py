"""Names of the notebook that a class uses: an engine or the sessions there, where its own are meant.

Such a slip runs, for the name is there, and the class then works on other sessions than those that it is given.
"""

from __future__ import annotations

import dis
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any

from ...kv.blocks import BlockTable
from ...lessons import l035_blocks
from ..world.causes import Cause
from ..world.error_reading import described
from ..world.fault import Fault
from ..world.learner import built_with, methods_of
from .by_value import OF_AN_ENGINE, dumps
from .trial import Trial

ITS_OWN = (*OF_AN_ENGINE, l035_blocks.BlockTable, BlockTable)  # what belongs to one engine
REMEDY = "make what another process cannot get, such as a lock or an open file, in `__init__`, and keep it in `self`"


@dataclass(frozen=True)
class Used:
    """A name from outside that a class reads. function: the function that reads it. line: the number of the line."""

    name: str
    value: Any
    function: FunctionType
    line: int

    @property
    def place(self) -> str:
        """The learner's line, and where it stands."""
        code = self.function.__code__
        text = linecache.getline(code.co_filename, self.line).strip()
        return f"in line {self.line}, in {code.co_name}: {text or '(its text is not available)'}"

    @property
    def words(self) -> str:
        return f"`{self.name}`, a name from outside the class"


def of_another_engine(trial: Trial) -> Used | None:
    """The first name that a class reads and that holds something of an engine; None for most classes."""
    return next((used for used in names_used(trial.learner.part) if _is_of_an_engine(used.value)), None)


def used_instead(trial: Trial, used: Used) -> Fault:
    """What is wrong with a part that is not right and reads such a name."""
    parameters = [name for name in used.function.__code__.co_varnames if name not in ("self", used.name)]
    close = get_close_matches(used.name, parameters, 1, 0.8)
    called_with = trial.learner.called_with
    given = {"__init__": built_with(called_with)} | dict(methods_of(called_with))
    calls = ", ".join(f"{method}({', '.join(names)})" for method, names in given.items())
    reason = f"a part works with what it is given, {calls}, and keeps in `self` what it needs later"
    if close:
        reason = f"`{used.function.__name__}` has `{close[0]}`, and reads `{used.name}`: one of the two is misspelt"
    details = (used.place, f"{used.name}: {described(used.value)}")
    return Fault(f"the class uses {used.words}, in the place of its own", details, reason, cause=Cause.INTERFACE)


def cannot_be_sent(part: type, why: str) -> Fault:
    """A class that another interpreter cannot get by value, as one must where a GPU is used. why: of the exception."""
    used = next((used for used in names_used(part) if not _can_be_sent(used.value)), None)
    if used is None:
        what = f"the class cannot be taken to the process that tries it: {why}"
        return Fault(what, reason=REMEDY, cause=Cause.INTERFACE)
    what = f"the class uses {used.words}, which cannot be taken to the process that tries it"
    details = (used.place, f"{used.name}: {described(used.value)}", f"because: {why}")
    reason = "a part works with what it is given" if _is_of_an_engine(used.value) else REMEDY
    return Fault(what, details, reason, cause=Cause.INTERFACE)


def _can_be_sent(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:  # of any object that it reaches
        return False
    return True


def _is_of_an_engine(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set) and not isinstance(value, ITS_OWN):
        return any(isinstance(each, ITS_OWN) for each in value)
    return isinstance(value, ITS_OWN)


# -- what a class reads -----------------------------------------------------------------------------------------------


def names_used(part: type) -> Iterator[Used]:
    """The names outside of a class that its functions read, and those that they call in its module."""
    todo, seen = list(_functions_of(part)), set[CodeType]()
    while todo:
        function = todo.pop(0)
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for used in _read_by(function):
            yield used
            if getattr(used.value, "__module__", None) == part.__module__:
                todo += [used.value] if isinstance(used.value, FunctionType) else _functions_of(used.value)


def _functions_of(part: Any) -> Iterator[FunctionType]:
    for base in part.__mro__ if isinstance(part, type) else ():
        for value in vars(base).values() if base.__module__ == part.__module__ else ():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function


def _read_by(function: FunctionType) -> Iterator[Used]:
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells if _is_full(cell)}
    around.pop("__class__", None)  # of `super()`: the class itself
    for inner in _codes(code):
        for step in dis.get_instructions(inner):
            names = function.__globals__ if step.opname == "LOAD_GLOBAL" else around
            if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and step.argval in names:
                line = step.positions.lineno if step.positions else None
                yield Used(step.argval, names[step.argval], function, line or inner.co_firstlineno)


def _is_full(cell: Any) -> bool:
    """Whether the name has a value by now."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A piece of code and all those within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
