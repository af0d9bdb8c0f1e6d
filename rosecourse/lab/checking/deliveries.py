"""The part `delivery` of lesson 068: every item lies in its mailbox at once, and the readers are woken in turns."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...config import EngineConfig, SamplingParams
from ...decode import BEST
from ...decode.delivery import Delivery
from ...decode.parts import DecodeParts
from ...engine.stepper import End, NewTokenItem
from ...request.session import InferenceSession
from . import Wrong
from .search import smallest
from .stories import Op, Ops, Playing, Stories, Story
from .whole_engine import read_by_threads

MOST_WAKES = 8  # at a hand-over, by the text of the exercise
MOST_NAMES = 12  # of readers, in a fact
LONG = SamplingParams(max_new_tokens=10**6)
READERS = ("asleep", "asleep", "awake", "gone")
KINDS = ("start", "join", "end", "cancel", "nothing", "flush", "leave", "other")
BY_COST = 60  # stories in which wakes are counted
MOST_REQUESTS = 150


class InTurns(Delivery):
    """The engine's own delivery without a clock: it wakes so many readers at each hand-over, on every machine."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, wakes_per_second=MOST_WAKES, clock=itertools.count().__next__)


class Box:
    """A mailbox without threads: its reader sleeps until it is woken, and then reads all that lies there.

    items: what lies there. read: what its reader has read. wakes: how often it was woken. A box in which nothing lies
    is false, as the engine's mailboxes are.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[Any] = []
        self.read: list[Any] = []
        self.wakes = 0

    def __len__(self) -> int:
        return len(self.items)

    def put(self, item: Any) -> None:
        """Lay an item down; whoever sleeps goes on sleeping."""
        self.items.append(item)

    def wake(self) -> None:
        self.wakes += 1
        self.read += self.items
        self.items.clear()


class Reader(Box):
    """A reader whose mailbox tells a delivery's model what happens to it.

    kind: one that is `asleep` reads when it is woken, `awake` reads at once, `gone` never reads. requests: that live.
    """

    def __init__(self, name: str, kind: str, model: DeliveryInTurns) -> None:
        super().__init__(name)
        self.kind, self.model = kind, model
        self.requests: list[InferenceSession] = [InferenceSession([1], LONG)]
        self.tokens_made = 0

    def put(self, item: Any) -> None:
        super().put(item)
        self.model.has_put(self, item)
        if self.kind == "awake":
            self.items.clear()

    def wake(self) -> None:
        self.model.has_woken(self)
        if self.kind != "gone":
            self.items.clear()


Asked = list[tuple[Reader, Any]]  # pairs of a mailbox and an item
Request = tuple[Reader, InferenceSession]


class DeliveryInTurns:
    """A delivery and its readers. most: wakes at one hand-over, the most so far. for_nothing: wakes of readers for whom
    nothing had come."""

    def __init__(self, part: type, say: Callable[[str], None] = lambda line: None) -> None:
        self.say = say
        self.readers: list[Reader] = []
        self.waiting: dict[Reader, int] = {}  # -> the hand-over that brought the first item after its last wake
        self.waited: dict[str, int] = {}  # reader -> the last hand-over at which it waited
        self.puts: Asked = []  # of the call that is under way
        self.woken: list[Reader] = []
        self.names: dict[int, str] = {}  # of tokens
        self.number = self.most = self.for_nothing = self._started = 0
        self.made = part(EngineConfig())

    def start(self, kind: str, number: int) -> None:
        known = len(self.readers)
        for _ in range(min(number, MOST_REQUESTS - len(self.requests()))):
            self._started += 1
            n = self._started
            self.readers.append(Reader(chr(64 + n) if n <= 26 else f"R{n}", kind, self))
        if names := [reader.name for reader in self.readers[known:]]:
            are = {"asleep": "", "awake": " (never asleep)", "gone": " (never read)"}[kind]
            to = ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}"
            self.say(f"{'readers' if len(names) > 1 else 'reader'} {to}{are}, a request each")

    def join(self, number: int, times: int) -> None:
        if self.readers:
            reader = self.readers[number % len(self.readers)]
            reader.requests += [InferenceSession([1], LONG) for _ in range(times)]
            self.say(f"{times} more request(s) of {reader.name}")

    def step(self, chosen: Any, times: int) -> None:
        for _ in range(times):
            batch = self._batch(chosen)
            if batch:
                self.say(f"a token each for [{_those(batch)}]")
                self.hand_over([self._token(request) for request in batch])

    def end(self, chosen: Any, others: int) -> None:
        """The last tokens of some requests; others: whether the rest have a token, too."""
        ending = self._batch(chosen)
        rest = [request for request in self.requests() if others and request not in ending]
        if ending:
            also = f"a token each for [{_those(rest)}], " if rest else ""
            self.say(f"{also}the last token and the end for [{_those(ending)}]")
            asked = [self._token(request) for request in rest]
            for request in ending:
                asked += [self._token(request, "length"), self._end(request)]
            self.hand_over(asked)

    def cancel(self, chosen: Any) -> None:
        batch = self._batch(chosen)
        if batch:
            self.say(f"the end for [{_those(batch)}]")
            self.hand_over([self._end(request) for request in batch])

    def nothing(self, times: int) -> None:
        for _ in range(times):
            self.say("a hand-over that brings nothing")
            self.hand_over([])

    def flush(self) -> None:
        self.say("flush")
        self._flush()

    def leave(self) -> None:
        """Readers without requests go when nothing comes any more."""
        self.say("nothing comes, flush, and readers without requests go")
        self.hand_over([])
        self._flush()
        self.puts, self.woken = [], []
        gone = {reader.name: weakref.ref(reader) for reader in self.readers if not reader.requests}
        self.readers = [reader for reader in self.readers if reader.requests]
        if any(ref() is not None for ref in gone.values()):
            gc.collect()
        held = [name for name, ref in gone.items() if ref() is not None]
        if held:
            raise Wrong(f"nothing of a reader who has gone may be kept; found: the mailbox of {held[0]} is kept")

    def requests(self) -> list[Request]:
        """Those that live: the first one of each reader, then the second ones."""
        places = [(n, r, reader) for r, reader in enumerate(self.readers) for n in range(len(reader.requests))]
        return [(reader, reader.requests[n]) for n, _, reader in sorted(places, key=lambda place: place[:2])]

    def _batch(self, chosen: Any) -> list[Request]:
        requests = self.requests()
        if chosen in ("all", "reversed"):
            return requests if chosen == "all" else requests[::-1]
        numbers = dict.fromkeys(number % len(requests) for number in chosen) if requests else []
        return [requests[number] for number in numbers]

    def _token(self, request: Request, reason: str | None = None) -> tuple[Reader, Any]:
        """The next token of a request, for its mailbox. reason: why it is the last one."""
        reader, session = request
        reader.tokens_made += 1
        number = len(self.names)
        self.names[number] = f"{reader.name}{reader.tokens_made}"
        return reader, NewTokenItem(session, number, reason)

    def _end(self, request: Request) -> tuple[Reader, Any]:
        reader, session = request
        reader.requests.remove(session)
        return reader, End(session)

    def hand_over(self, asked: Asked) -> None:
        """Raises `Wrong`, as all that follow."""
        given = list(asked)
        self.puts, self.woken = [], []
        self.number += 1
        self.waited |= {reader.name: self.number for reader in self.waiting}
        self.made.hand_over(given)
        if given != asked:
            raise Wrong("hand_over changed the list that it was given")
        self._look_at_items(asked)
        self._look_at_turns()

    def _flush(self) -> None:
        self.puts, self.woken = [], []
        self.made.flush()
        if self.puts:
            reader, item = self.puts[0]
            raise Wrong(f"flush must put nothing; found: it put {self._told([item])} into the mailbox of {reader.name}")
        if self.waiting:
            raise Wrong(f"after flush nobody may wait; found: {_names(list(self.waiting))} not woken")

    def has_put(self, reader: Reader, item: Any) -> None:
        self.puts.append((reader, item))
        self.waiting.setdefault(reader, self.number)
        self.waited[reader.name] = self.number

    def has_woken(self, reader: Reader) -> None:
        self.woken.append(reader)
        self.for_nothing += self.waiting.pop(reader, None) is None

    def _look_at_items(self, asked: Asked) -> None:
        expected, found = _by_reader(asked), _by_reader(self.puts)
        for reader in {**expected, **found}:
            wanted, there = expected.get(reader, []), found.get(reader, [])
            if [*map(type, wanted)] != [*map(type, there)] or wanted != there:
                fact = f"the mailbox of {reader.name} must get {self._told(wanted)}; found: {self._told(there)}"
                others = [other.name for other, item in self.puts if other is not reader and item in wanted]
                raise Wrong(fact + (f"\nof these one lies in the mailbox of {others[0]}" if others else ""))

    def _look_at_turns(self) -> None:
        """With r readers who wait, of whom some are woken each time, nobody waits longer than r of them take."""
        self.most = max(self.most, len(self.woken))
        beside: dict[int, int] = {}  # hand-over -> readers who have waited since then
        for reader, since in self.waiting.items():
            if since not in beside:
                beside[since] = sum(last >= since for last in self.waited.values())
            waited, turns = self.number - since + 1, -(-beside[since] // MOST_WAKES)
            if waited >= turns:
                raise Wrong(
                    f"{beside[since]} reader(s) wait, or have waited beside {reader.name}; {MOST_WAKES} are woken at a "
                    f"hand-over:\n{reader.name} must be woken within {turns} hand-over(s); found: it still waits after "
                    f"{waited}; woken at this one: {_names(self.woken)}"
                )

    def _told(self, items: Sequence[Any]) -> str:
        return f"[{', '.join(map(self._word, items))}]"

    def _word(self, item: Any) -> str:
        if isinstance(item, NewTokenItem):
            return self.names.get(item.token_id, "another token")
        return "the end" if isinstance(item, End) else f"a {type(item).__name__}"


def _by_reader(pairs: Asked) -> dict[Reader, list[Any]]:
    found: dict[Reader, list[Any]] = {}
    for reader, item in pairs:
        found.setdefault(reader, []).append(item)
    return found


def _names(readers: Sequence[Reader]) -> str:
    more = f" and {len(readers) - MOST_NAMES} more" if len(readers) > MOST_NAMES else ""
    return ", ".join(reader.name for reader in readers[:MOST_NAMES]) + more or "nobody"


def _those(batch: list[Request]) -> str:
    return _names([reader for reader, _ in batch])


@dataclass(frozen=True)
class NoSizes:
    def __str__(self) -> str:
        return ""


class Played(Playing):
    def __init__(self, part: type) -> None:
        super().__init__()
        self.part = part

    def begin(self) -> None:
        self.engines.append(DeliveryInTurns(self.part, self.say))

    @property
    def most(self) -> int:
        return max(engine.most for engine in self.engines)

    @property
    def for_nothing(self) -> int:
        return sum(engine.for_nothing for engine in self.engines)


class DeliveryStories(Stories):
    """Readers who join, sleep, stop reading and go, and hand-overs that bring something or nothing."""

    part, count = "delivery", 400
    holds = "each item once and at its hand-over, every reader in its turn"
    whole = staticmethod(read_by_threads)
    at_least_one = frozenset({("start", 1), ("join", 1), ("step", 1), ("nothing", 0)})

    def number(self, n: int) -> Story:
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

    @staticmethod
    def engine(parts: DecodeParts, device: torch.device) -> DecodeParts:
        return parts.with_(delivery=InTurns) if parts.delivery is BEST.delivery else parts

    def together(self, ops: Ops) -> Iterator[Ops]:
        for at, (first, second) in enumerate(itertools.pairwise(ops)):
            if first[:2] == second[:2] and first[0] in ("start", "step", "join"):
                yield (*ops[:at], (*first[:2], first[2] + second[2]), *ops[at + 2 :])

    def instead(self, op: Op, sizes: NoSizes) -> Iterator[Ops]:
        if op[0] == "start" and op[1] != READERS[0]:
            yield (("start", READERS[0], op[2]),)

    def missing(self, part: type, right: type, bounds: tuple[Any, ...]) -> Iterator[str]:
        """What a part has more of than the course's, a sentence for each bound, with the smallest story."""
        stories = [self.number(n) for n in range(BY_COST)]
        for bound in bounds:

            def cost(which: type, story: Story, amount: str = bound.amount) -> tuple[int, list[str]]:
                played = self.play(which, story, lambda played: None)
                return getattr(played, amount), played.lines

            most = max(cost(right, story)[0] for story in stories)

            def dearer(story: Story, most: int = most) -> tuple[int, list[str]] | None:
                found = cost(part, story)
                return found if found[0] > most else None

            dear = next(((story, found) for story in stories if (found := dearer(story))), None)
            if dear:
                number, lines = smallest(self, *dear, dearer)[1]
                yield f"{bound.words}: {number}; with the course's part at most {most} ({'; '.join(lines)})"
