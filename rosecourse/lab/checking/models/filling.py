"""The part of 074: how a step is filled. A story is a batch whose prompts come, are computed and then decode."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from ....checks import is_count
from .. import Wrong, counted, must
from ..stories import Playing, Stories, Story, told_sizes
from ..whole_engine import in_chunks

MOST = 26  # prompts, a letter each


@dataclass(frozen=True)
class Room:
    """The defaults are what shrinking goes for. batch: sessions that run; spare: tokens of the budget beyond."""

    batch: int = 1
    spare: int = 0
    __str__ = told_sizes

    @property
    def budget(self) -> int:
        return self.batch + self.spare


@dataclass(frozen=True)
class Step:
    """One that is counted."""

    budget: int
    decoding: int
    prompts: tuple[int, ...]

    @property
    def words(self) -> str:
        return f"{self.budget} tokens, for {self.decoding} that decode and prompts of {list(self.prompts)} tokens"


class Filling(Playing):
    """Prompts wait for a place, are computed in their order, and then take a token in each step, until they end."""

    def __init__(self, part: type, sizes: Room) -> None:
        super().__init__()
        self.part, self.sizes = part, sizes
        self.names = iter(map(chr, range(65, 65 + MOST)))
        self.waiting: dict[str, int] = {}  # tokens that each has left
        self.prompts: dict[str, int] = {}
        self.decoding: list[str] = []

    def begin(self) -> None:
        self.fill = self.part(self.sizes.budget)

    def _arrive(self, length: int) -> None:
        if (name := next(self.names, None)) is not None:
            self.waiting[name] = length
            self.say(f"{name} arrives with {counted(length, 'token')}")

    def _leave(self, number: int) -> None:
        if self.decoding:
            self.say(f"{self.decoding.pop(number % len(self.decoding))} ends")

    def end(self) -> None:
        while self.waiting or self.prompts:
            if not (self.prompts or len(self.decoding) < self.sizes.batch):
                self._leave(0)
            self._step()

    def _step(self) -> None:
        while self.waiting and len(self.prompts) + len(self.decoding) < self.sizes.batch:
            name = next(iter(self.waiting))
            self.prompts[name] = self.waiting.pop(name)
        if not self.prompts:
            return
        given = list(self.prompts.values())
        told = ", ".join(f"{name} has {left} left" for name, left in self.prompts.items())
        self.say(f"a step of {counted(self.sizes.budget, 'token')}: {len(self.decoding)} decode, {told}")
        found = self.fill(len(self.decoding), given)
        must("the list of prompts that it is given", list(self.prompts.values()), given)
        self.look(found)
        for name, size in zip(list(self.prompts), found, strict=True):
            self.prompts[name] -= size
            if not self.prompts[name]:
                del self.prompts[name]
                self.decoding.append(name)

    def look(self, found: list[int]) -> None:
        """What is true of the sizes of a step's chunks."""
        if not isinstance(found, list) or not all(is_count(size, 0) for size in found):
            raise Wrong(f"it must return a list of numbers, 0 or more; found: {found!r}")
        must("the length of the list", len(self.prompts), len(found))
        short = ""
        for (name, left), size in zip(self.prompts.items(), found, strict=True):
            if size > left:
                raise Wrong(f"{name} has {left} left; found: a chunk of {size}")
            if short and size:
                raise Wrong(f"{short} is older, so that {name} must wait until it is whole; found: {found}")
            short = short or (name if size < left else "")
        total = len(self.decoding) + sum(found)
        if total > self.sizes.budget:
            most = counted(self.sizes.budget, "token")
            raise Wrong(f"a step has at most {most}; found: {total}, {len(self.decoding)} of them for who decodes")
        if not sum(found):
            raise Wrong(f"there is room, and no prompt gets a token: {next(iter(self.prompts))} would starve")


class FillStories(Stories):
    """Budgets, batches, and prompts that come and go."""

    part, count, at_least_one = "fill", 200, frozenset({("arrive", 0)})
    holds = "each token is computed once, oldest prompt first, no step exceeds the budget, and nobody starves"
    engine = staticmethod(lambda parts, device: parts)
    whole = staticmethod(in_chunks)

    def number(self, n: int) -> Story:
        dice = random.Random(n)
        sizes = Room(dice.choice([1, 2, 3, 4, 8]), dice.choice([0, 1, 2, 5, 16]))
        draws: dict[str, Callable[[], tuple[int, ...]]] = {
            "arrive": lambda: (dice.choice([1, 2, 3, sizes.budget, sizes.budget + 1, 3 * sizes.budget]),),
            "step": tuple,
            "leave": lambda: (dice.randrange(8),),
        }
        kinds = dice.choices(list(draws), [3, 4, 2], k=dice.randint(1, 40))
        return Story(sizes, tuple((kind, *draws[kind]()) for kind in kinds))

    def played(self, part: type, sizes: Room) -> Filling:
        return Filling(part, sizes)

    def watched(self, part: type, step: Step) -> SimpleNamespace:
        """unused: tokens of the budget that a step leaves, though some prompt has tokens left."""
        found = part(step.budget)(step.decoding, list(step.prompts))
        return SimpleNamespace(unused=min(step.budget - step.decoding, sum(step.prompts)) - sum(found))
