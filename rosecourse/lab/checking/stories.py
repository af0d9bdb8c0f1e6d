"""Stories by number, which a seeded generator draws: how a part lives through one, and how one is made smaller.

An operation is its name with its arguments; what it works on is a number, which counts round those that live.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

from .apart import STEP

Op = tuple[Any, ...]
Ops = tuple[Op, ...]


class Story(NamedTuple):
    """sizes: a dataclass whose defaults are what shrinking goes for."""

    sizes: Any
    ops: Ops


class Playing(ABC):
    """A story that is being played, with one engine or two. An operation is a method `_NAME` here, or else NAME of
    the engine.

    lines: what has happened so far; listen: gets them whenever there is another.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.listen: Callable[[list[str]], object] = lambda lines: None
        self.engines: list[Any] = []
        self.at = 0

    @property
    def engine(self) -> Any:
        return self.engines[self.at]

    @abstractmethod
    def begin(self) -> None:
        """Another engine, with a part of its own."""

    def live_through(self, ops: Ops, tell: Callable[[Any], object]) -> None:
        """Play a story. tell: gets it before that. Raises whatever goes wrong."""
        STEP.begin()
        try:
            tell(self)
            self.begin()
            for op in ops:
                self.do(op)
            self.end()
        finally:
            STEP.end()

    def do(self, op: Op) -> None:
        STEP.begin()
        kind, *arguments = op
        own = getattr(self, f"_{kind}", None)
        (own or getattr(self.engine, kind))(*arguments)

    def end(self) -> None:  # noqa: B027 (most have nothing to end)
        """What has been begun is brought to its end."""

    def picture(self) -> list[str]:
        return []

    def say(self, line: str) -> None:
        self.lines.append(f"engine {self.at + 1}: {line}" if len(self.engines) > 1 else line)
        self.listen(self.lines)

    def _other(self) -> None:
        if len(self.engines) == 1:
            self.begin()
        self.at = 1 - self.at


class Stories(ABC):
    """The stories of a kind of part. count: how many of them are played. at_least_one: (kind of operation, place) of
    arguments that are never 0."""

    count: int
    at_least_one: frozenset[tuple[str, int]] = frozenset()

    @abstractmethod
    def number(self, n: int) -> Story:
        """The story of this number."""

    @abstractmethod
    def played(self, part: type, sizes: Any) -> Playing:
        """A story that begins."""

    def play(self, part: type, story: Story, tell: Callable[[Any], object]) -> Any:
        """Let a part live through a story. tell: gets the story as it is being played. Raises whatever goes wrong."""
        played = self.played(part, story.sizes)
        played.live_through(story.ops, tell)
        return played

    def smaller(self, story: Story) -> Iterator[Story]:
        """Stories with something left out or made smaller, the boldest first."""
        yield from (story._replace(ops=ops) for ops in _fewer(story.ops))
        yield from (story._replace(ops=ops) for ops in self.together(story.ops))
        yield from (story._replace(sizes=sizes) for sizes in smaller_sizes(story.sizes))
        for at, op in enumerate(story.ops):
            for others in (*self.instead(op, story.sizes), *((other,) for other in self._lower(op))):
                yield story._replace(ops=(*story.ops[:at], *others, *story.ops[at + 1 :]))

    def together(self, ops: Ops) -> Iterator[Ops]:
        """Operations that are alike as one."""
        yield from ()

    def instead(self, op: Op, sizes: Any) -> Iterator[Ops]:
        """What is simpler than an operation, and may stand in its place."""
        yield from ()

    def _lower(self, op: Op) -> Iterator[Op]:
        kind, *arguments = op
        for n, argument in enumerate(arguments):
            for lower in _smaller_argument(argument, int((kind, n) in self.at_least_one)):
                yield (kind, *arguments[:n], lower, *arguments[n + 1 :])


def _fewer(ops: Ops) -> Iterator[Ops]:
    for size in dict.fromkeys((len(ops) // 2, len(ops) // 4, 2, 1)):
        for at in range(len(ops) - size, -1, -1) if size else ():
            yield ops[:at] + ops[at + size :]


def told_sizes(sizes: Any) -> str:
    """What differs from the defaults."""
    told = [f"{f.name}={value}" for f in fields(sizes) if (value := getattr(sizes, f.name)) != f.default]
    return ", ".join(told)


def smaller_sizes(sizes: Any) -> Iterator[Any]:
    """The defaults first; a number that is to be large is halved, and at last made smaller by one."""
    for field in fields(sizes):
        value, least = getattr(sizes, field.name), getattr(type(sizes), field.name)
        if value != least:
            yield replace(sizes, **{field.name: least})
            halves = (value // 2,) if field.name == "block_size" else _lower_numbers(value)  # a power of two
            yield from (replace(sizes, **{field.name: lower}) for lower in halves if (least or 0) < lower)


def _lower_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield from dict.fromkeys((value // 2, value * 3 // 4, value - 1))


def _smaller_argument(argument: Any, least: int) -> Iterator[Any]:
    if isinstance(argument, int):
        yield from (lower for lower in dict.fromkeys((least, *_lower_numbers(argument))) if least <= lower < argument)
    elif isinstance(argument, tuple):
        if len(argument) > 1:
            yield from (argument[:n] + argument[n + 1 :] for n in range(len(argument)))
        if argument != tuple(sorted(argument)):
            yield tuple(sorted(argument))
    elif argument in ("all", "reversed"):
        yield from ((0,), "all") if argument == "reversed" else ((0,),)
