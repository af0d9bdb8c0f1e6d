"""Stories of deliveries: readers who join, sleep, stop reading and go, hand-overs that bring something or nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .models.delivery import DeliveryInTurns
from .search import smallest
from .stories import Op, Ops, Playing, Stories, Story
from .whole_engine import read_by_threads

READERS = ("asleep", "asleep", "awake", "gone")
KINDS = ("start", "join", "end", "cancel", "nothing", "flush", "leave", "other")
BY_COST = 60  # stories in which wakes are counted
MOST_REQUESTS = 150


@dataclass(frozen=True)
class NoSizes:
    def __str__(self) -> str:
        return ""


class Played(Playing):
    """A story of deliveries."""

    def __init__(self, part: type) -> None:
        super().__init__()
        self.part = part

    def begin(self) -> None:
        self.engines.append(DeliveryInTurns(self.part))

    def _start(self, kind: str, number: int) -> None:
        new = [self.engine.start(kind) for _ in range(min(number, MOST_REQUESTS - len(self.engine.requests())))]
        if new:
            are = {"asleep": "", "awake": " (never asleep)", "gone": " (never read)"}[kind]
            self.say(f"{'readers' if len(new) > 1 else 'reader'} {_to(new)}{are}, a request each")

    def _join(self, number: int, times: int) -> None:
        if self.engine.readers:
            reader = self.engine.readers[number % len(self.engine.readers)]
            for _ in range(times):
                self.engine.join(reader)
            self.say(f"{times} more request(s) of {reader.name}")

    def _step(self, chosen: Any, times: int) -> None:
        for _ in range(times):
            batch = self._batch(chosen)
            if batch:
                self.say(f"a token each for [{_those(batch)}]")
                self.engine.hand_over([self.engine.token(request) for request in batch])

    def _end(self, chosen: Any, others: int) -> None:
        """The last tokens of some requests; others: whether the rest have a token, too."""
        ending = self._batch(chosen)
        rest = [request for request in self.engine.requests() if others and request not in ending]
        if ending:
            self.say(
                f"a token each for [{_those(rest)}], " * bool(rest)
                + f"the last token and the end for [{_those(ending)}]"
            )
            asked = [self.engine.token(request) for request in rest]
            for request in ending:
                asked += [self.engine.token(request, "length"), self.engine.end(request)]
            self.engine.hand_over(asked)

    def _cancel(self, chosen: Any) -> None:
        """They end without another token."""
        batch = self._batch(chosen)
        if batch:
            self.say(f"the end for [{_those(batch)}]")
            self.engine.hand_over([self.engine.end(request) for request in batch])

    def _nothing(self, times: int) -> None:
        for _ in range(times):
            self.say("a hand-over that brings nothing")
            self.engine.hand_over([])

    def _flush(self) -> None:
        self.say("flush")
        self.engine.flush()

    def _leave(self) -> None:
        self.say("nothing comes, flush, and readers without requests go")
        self.engine.leave()

    def _batch(self, chosen: Any) -> list[Any]:
        """Requests, in the order of a hand-over."""
        requests = self.engine.requests()
        if chosen in ("all", "reversed"):
            return requests if chosen == "all" else requests[::-1]
        numbers = dict.fromkeys(number % len(requests) for number in chosen) if requests else []
        return [requests[number] for number in numbers]


def _to(readers: list[Any]) -> str:
    names = [reader.name for reader in readers]
    return ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}"


def _those(batch: list[Any]) -> str:
    names = [reader.name for reader, _ in batch]
    return ", ".join(names) if len(names) < 13 else f"{', '.join(names[:5])}, ... {names[-1]}: {len(names)} requests"


class DeliveryStories(Stories):
    """The stories of deliveries."""

    part, words = "delivery", "a delivery"
    holds = "each item once and at its hand-over, every reader in its turn"
    whole = staticmethod(read_by_threads)
    engine = staticmethod(DeliveryInTurns.engine)
    count = 400
    at_least_one = frozenset({("start", 1), ("join", 1), ("step", 1), ("nothing", 0)})

    def number(self, n: int) -> Story:
        """The story of this number; in every fourth there are many readers."""
        dice, large = random.Random(n), n % 4 == 3

        def some() -> Any:
            few = tuple(dice.sample(range(40), dice.choice([1, 2, 3, 8, 13])))
            return dice.choice(["all", "all", "reversed", few, few])

        draws: dict[str, Callable[[], Op]] = {
            "step": lambda: (some(), dice.choice([1, 1, 1, 2, 3, 12])),
            "start": lambda: (dice.choice(READERS), dice.choice([1, 2, 8, 9, 10, 18, *[30, MOST_REQUESTS] * large])),
            "join": lambda: (dice.randrange(12), dice.choice([1, 1, 3, 11])),
            "end": lambda: (some(), dice.randrange(2)),
            "cancel": lambda: (some(),),
            "nothing": lambda: (dice.choice([1, 1, 2, 5]),),
        }
        kinds = ["step", "step", *dice.sample(KINDS, dice.choice([2, 3, 5, len(KINDS)]))]  # few, and more of each
        chosen = ["start", *dice.choices(kinds, k=dice.randint(2, 16))]
        return Story(NoSizes(), tuple((kind, *draws.get(kind, tuple)()) for kind in chosen))

    def played(self, part: type, sizes: NoSizes) -> Played:
        return Played(part)

    def together(self, ops: Ops) -> Iterator[Ops]:
        for at, (first, second) in enumerate(itertools.pairwise(ops)):
            if first[:2] == second[:2] and first[0] in ("start", "step", "join"):
                yield (*ops[:at], (*first[:2], first[2] + second[2]), *ops[at + 2 :])

    def instead(self, op: Op, sizes: NoSizes) -> Iterator[Ops]:
        if op[0] == "start" and op[1] != READERS[0]:
            yield (("start", READERS[0], op[2]),)

    # -- what wakes cost ----------------------------------------------------------------------------------------------

    def missing(self, part: type, right: type, bounds: tuple[Any, ...]) -> Iterator[str]:
        """What a part has more of than the course's, a sentence for each bound, with the smallest story."""
        stories = [self.number(n) for n in range(BY_COST)]
        for bound in bounds:

            def cost(which: type, story: Story, bound: Any = bound) -> tuple[int, list[str]]:
                played = self.play(which, story, lambda played: None)
                return bound.amount(played), played.lines

            most = max(cost(right, story)[0] for story in stories)

            def costs_more(story: Story, most: int = most) -> tuple[int, list[str]] | None:
                found = cost(part, story)
                return found if found[0] > most else None

            for story in stories:
                found = costs_more(story)
                if found:
                    number, lines = smallest(self, story, found, costs_more)[1]
                    yield f"{bound.words}: {number}; with the course's part at most {most} ({'; '.join(lines)})"
                    break
