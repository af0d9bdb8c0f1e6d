"""The part `delivery` of lesson 068: every item lies in its mailbox at once, and the readers are woken in turns."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch

from ....config import EngineConfig, SamplingParams
from ....decode import BEST
from ....decode.delivery import Delivery
from ....decode.parts import DecodeParts
from ....engine.stepper import End, NewTokenItem
from ....request.session import InferenceSession
from .. import Wrong
from ..mailboxes import Box

MOST_WAKES = 8  # at a hand-over, by the text of the exercise
MOST_NAMES = 12  # of readers, in a fact
LONG = SamplingParams(max_new_tokens=10**6)


class InTurns(Delivery):
    """The engine's own delivery without a clock: it wakes so many readers at each hand-over, on every machine."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, wakes_per_second=MOST_WAKES, clock=count().__next__)


class Reader(Box):
    """A reader whose mailbox tells a delivery's model what happens to it.

    kind: one that is `asleep` reads when it is woken, `awake` reads at once, `gone` never reads. requests: that live.
    """

    def __init__(self, name: str, kind: str, model: DeliveryInTurns) -> None:
        super().__init__(name)
        self.kind, self.model = kind, model
        self.requests: list[InferenceSession] = []
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

    def __init__(self, part: type) -> None:
        self.readers: list[Reader] = []
        self.waiting: dict[Reader, int] = {}  # -> the hand-over that brought the first item after its last wake
        self.waited: dict[str, int] = {}  # reader -> the last hand-over at which it waited
        self.puts: Asked = []  # of the call that is under way
        self.woken: list[Reader] = []
        self.names: dict[int, str] = {}  # of tokens
        self.number = self.most = self.for_nothing = self._started = 0
        self.made = part(EngineConfig())

    @staticmethod
    def engine(parts: DecodeParts, device: torch.device) -> DecodeParts:
        """The parts, with the engine's own delivery by the number of hand-overs."""
        return parts.with_(delivery=InTurns) if parts.delivery is BEST.delivery else parts

    # -- readers and their requests -----------------------------------------------------------------------------------

    def start(self, kind: str) -> Reader:
        """A new reader with one request."""
        self._started += 1
        n = self._started
        self.readers.append(Reader(chr(64 + n) if n <= 26 else f"R{n}", kind, self))
        self.join(self.readers[-1])
        return self.readers[-1]

    def join(self, reader: Reader) -> None:
        """Another request of a reader."""
        reader.requests.append(InferenceSession([1], LONG))

    def requests(self) -> list[Request]:
        """Those that live: the first one of each reader, then the second ones."""
        places = [(n, r, reader) for r, reader in enumerate(self.readers) for n in range(len(reader.requests))]
        return [(reader, reader.requests[n]) for n, _, reader in sorted(places, key=lambda place: place[:2])]

    def token(self, request: Request, reason: str | None = None) -> tuple[Reader, Any]:
        """The next token of a request, for its mailbox. reason: why it is the last one."""
        reader, session = request
        reader.tokens_made += 1
        number = len(self.names)
        self.names[number] = f"{reader.name}{reader.tokens_made}"
        return reader, NewTokenItem(session, number, reason)

    def end(self, request: Request) -> tuple[Reader, Any]:
        reader, session = request
        reader.requests.remove(session)
        return reader, End(session)

    # -- calls of the delivery ----------------------------------------------------------------------------------------

    def hand_over(self, asked: Asked) -> None:
        """Raises `Wrong`, as all that follow."""
        given = list(asked)
        self._begin()
        self.number += 1
        self.waited |= {reader.name: self.number for reader in self.waiting}
        self.made.hand_over(given)
        if given != asked:
            raise Wrong("hand_over changed the list that it was given")
        self._look_at_items(asked)
        self._look_at_turns()

    def flush(self) -> None:
        self._begin()
        self.made.flush()
        if self.puts:
            reader, item = self.puts[0]
            raise Wrong(f"flush must put nothing; found: it put {self._told([item])} into the mailbox of {reader.name}")
        if self.waiting:
            raise Wrong(f"after flush nobody may wait; found: {_names(list(self.waiting))} not woken")

    def leave(self) -> list[str]:
        """Readers without requests go when nothing comes any more; returns their names."""
        self.hand_over([])
        self.flush()
        self._begin()
        gone = {reader.name: weakref.ref(reader) for reader in self.readers if not reader.requests}
        self.readers = [reader for reader in self.readers if reader.requests]
        if any(ref() is not None for ref in gone.values()):
            gc.collect()
        held = [name for name, ref in gone.items() if ref() is not None]
        if held:
            raise Wrong(f"nothing of a reader who has gone may be kept; found: the mailbox of {held[0]} is kept")
        return list(gone)

    def _begin(self) -> None:
        self.puts, self.woken = [], []

    def has_put(self, reader: Reader, item: Any) -> None:
        self.puts.append((reader, item))
        self.waiting.setdefault(reader, self.number)
        self.waited[reader.name] = self.number

    def has_woken(self, reader: Reader) -> None:
        self.woken.append(reader)
        self.for_nothing += self.waiting.pop(reader, None) is None

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _look_at_items(self, asked: Asked) -> None:
        """What lies in each mailbox that did not lie there before."""
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
        """Items in short: a token by its reader and number."""
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
