"""Stories that are written by hand: what a scenario asks of an oracle is recorded, and played again with less of it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

from ..world.error_reading import CannotTry
from ..world.fault import PartIsWrong
from ..world.learner import Learner
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.worlds import World
from .apart import STEP
from .facts import Wrong

KNOWN = (Tracked, Oracle)
PLACES = re.compile(r"\d[\d., ]*|\b[A-Z]\b|\[.*?\]")  # what changes in the words for a fault from story to story


class Ref(NamedTuple):
    """What an operation has returned, or one of the things in it. at: its number among the operations."""

    at: int
    item: int | None = None


class Call(NamedTuple):
    """target: the oracle, if it is not the first one."""

    at: int
    target: Ref | None
    method: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    can_be_repeated: bool


class Recorded(NamedTuple):
    """The scenario of this number: the whole of it, or so many of its operations. sizes: its name."""

    number: int
    sizes: str
    ops: tuple[Call, ...] = ()


class Telling:
    """A scenario that is being played. lines: what has been asked of its oracles; ops: what of it can be asked again.

    Nothing is held that an oracle has made: some parts are looked at for what they hold.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.listen: Callable[[list[str]], object] = lambda lines: None
        self.ops: list[Call] = []
        self._made: dict[Ref, weakref.ref[Any]] = {}

    def picture(self) -> list[str]:
        return []

    def call(self, target: Ref | None, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
        refs = tuple(map(self.ref, arguments)), {name: self.ref(value) for name, value in named.items()}
        is_plain = all(map(_is_plain, (*refs[0], *refs[1].values())))
        return Call(len(self.lines), target, method, *(refs if is_plain else ((), {})), is_plain)

    def ask(self, call: Call, oracle: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Let an oracle do what is asked of it."""
        STEP.begin()
        if call.can_be_repeated:
            self.ops.append(call)
        told = [*map(_told, arguments), *(f"{name}={_told(value)}" for name, value in named.items())]
        self.lines.append(f"{call.method}({', '.join(told)})")
        self.listen(self.lines)
        result = getattr(oracle, call.method)(*arguments, **named)
        for n, item in enumerate(result if isinstance(result, list | tuple) else [result]):
            if isinstance(item, KNOWN):
                self._made[Ref(call.at, n if isinstance(result, list | tuple) else None)] = weakref.ref(item)
        if isinstance(result, Tracked):
            self.lines[-1] += f": {result.name}"
        return result

    def ref(self, value: Any) -> Any:
        """How a later play finds what this one was given."""
        if isinstance(value, KNOWN):
            return next((ref for ref, made in self._made.items() if made() is value), value)
        if type(value) in (list, tuple):
            return type(value)(map(self.ref, value))
        return value

    def made(self, ref: Ref) -> Any:
        """Raises `KeyError` for what is not there any more."""
        found = self._made[ref]()
        if found is None:
            raise KeyError(ref)
        return found


class Recorder:
    """Stands for an oracle in a scenario: what is asked of it is noted, and handed on."""

    def __init__(self, oracle: Any, telling: Telling, target: Ref | None = None) -> None:
        self._oracle, self._telling, self._target = oracle, telling, target

    def __getattr__(self, method: str) -> Any:
        value = getattr(self._oracle, method)
        if not callable(value) or getattr(value, "__self__", None) is not self._oracle:
            return value

        def ask(*arguments: Any, **named: Any) -> Any:
            telling = self._telling
            call = telling.call(self._target, method, arguments, named)
            result = telling.ask(call, self._oracle, arguments, named)
            return Recorder(result, telling, Ref(call.at)) if isinstance(result, Oracle) else result

        return ask


class ScenarioStories:
    """The scenarios of a world, as stories. untried: why some cannot be played here."""

    def __init__(self, world: World[Any], device: str | None) -> None:
        self.world, self.device = world, device
        self.scenarios = world.scenarios_on(device)
        self.count = len(self.scenarios)
        self.untried = ""
        self._recorded: dict[int, tuple[Call, ...]] = {}  # number -> as far as the scenario was played
        self._faults: dict[int, str] = {}  # number -> what went wrong in it, without places

    def number(self, n: int) -> Recorded:
        return Recorded(n, self.scenarios[n].name)

    def play(self, part: type, story: Recorded, tell: Callable[[Any], object]) -> int:
        telling, scenario = Telling(), self.scenarios[story.number]
        tell(telling)
        STEP.begin()
        try:
            oracle = self.world.oracle(Learner(part, self.world.called_with), scenario.sizes)
            if story.ops:
                _play_again(oracle, story.ops, telling)
            else:
                scenario.story(Recorder(oracle, telling))
        except CannotTry as reason:
            self.untried = str(reason)
        except PartIsWrong as wrong:
            self._recorded.setdefault(story.number, tuple(telling.ops))
            fault = wrong.fault
            if not story.ops:
                self._faults[story.number] = _without_places(fault.what)
            if _without_places(fault.what) != self._faults[story.number]:
                return len(telling.ops)  # something else: the story is not one any more
            raise Wrong("\n".join([fault.what, *fault.details])) from None
        except Exception:
            if story.ops:  # of a story that leaves out too much
                return len(telling.ops)
            raise
        finally:
            STEP.end()
        return len(telling.ops)

    def smaller(self, story: Recorded) -> Iterator[Recorded]:
        """The same with something left out, as far as it was played."""
        ops = story.ops or self._recorded.get(story.number, ())
        for size in dict.fromkeys((len(ops) // 2, len(ops) // 4, 2, 1)):
            for at in range(len(ops) - size, -1, -1) if size else ():
                yield story._replace(ops=ops[:at] + ops[at + size :])


def _play_again(oracle: Any, ops: tuple[Call, ...], telling: Telling) -> None:
    """Those of the operations whose sessions are there."""
    for call in ops:
        try:
            target = oracle if call.target is None else _resolved(call.target, telling)
            arguments, named = _resolved(call.arguments, telling), _resolved(call.named, telling)
        except KeyError:
            continue
        telling.ask(call, target, arguments, named)


def _resolved(value: Any, telling: Telling) -> Any:
    if isinstance(value, Ref):
        return telling.made(value)
    if isinstance(value, dict):
        return {name: _resolved(each, telling) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resolved(each, telling) for each in value)
    return value


def _is_plain(value: Any) -> bool:
    """Whether it can be given once more: no sessions, mailboxes or tensors of this play."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, Ref | str | int | float | FunctionType | Enum | None)


def _told(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    known = getattr(value, "name", None) or getattr(value, "__name__", None)
    return str(known or (value if _is_plain(value) else f"a {type(value).__name__}"))


def _without_places(what: str) -> str:
    return PLACES.sub("#", what)
