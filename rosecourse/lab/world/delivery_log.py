"""What a delivery does at its hand-overs: what was put where, who was woken, and who waits to be woken for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .mailboxes import Box


@dataclass(frozen=True)
class WakesSeen:
    """most: wakes at one hand-over, the most of all so far. for_nothing: wakes of a reader for whom nothing had come
    since its last one, all of them so far."""

    most: int = 0
    for_nothing: int = 0


NO_WAKES = WakesSeen()


class LoggedBox(Box):
    """A mailbox of which all is noted.

    kind: of its reader. One that is `asleep` reads when it is woken, one that is `awake` reads at once, and one that is
    `gone` never reads.
    """

    def __init__(self, name: str, kind: str, log: DeliveryLog) -> None:
        super().__init__(name)
        self.kind, self.log = kind, log

    def put(self, item: Any) -> None:
        self.items.append(item)
        self.log.has_put(self, item)
        if self.kind == "awake":
            self.items.clear()

    def wake(self) -> None:
        self.log.has_woken(self)
        if self.kind != "gone":
            self.items.clear()


@dataclass
class Waiting:
    """A reader for whom something has come that it was not woken for. since: the hand-over at which the first of it
    came. rivals: the readers who have waited at some time since then, itself included."""

    since: int
    rivals: set[str] = field(default_factory=set)


class DeliveryLog:
    """puts, woken: of the call that is under way, in order. number: of the last hand-over, counted from 1.

    waiting: by the names of the readers.
    """

    def __init__(self) -> None:
        self.number = 0
        self.waiting: dict[str, Waiting] = {}
        self.puts: list[tuple[str, Any]] = []
        self.woken: list[str] = []
        self.too_early: set[str] = set()  # readers who were woken first, and for whom something came then
        self._met: set[str] = set()  # who waited at some time in this call
        self._most = self._for_nothing = 0
        self._nothing_new: set[str] = set()

    def begin(self, hand_over: bool) -> None:
        """A call of the part begins."""
        self.number += hand_over
        self.puts, self.woken = [], []
        self.too_early, self._nothing_new = set(), set()
        self._met = set(self.waiting)

    def has_put(self, box: Box, item: Any) -> None:
        self.puts.append((box.name, item))
        if box.name in self._nothing_new:
            self.too_early.add(box.name)
        self.waiting.setdefault(box.name, Waiting(self.number))
        self._met.add(box.name)

    def has_woken(self, box: Box) -> None:
        self.woken.append(box.name)
        if self.waiting.pop(box.name, None) is None:
            self._for_nothing += 1
            self._nothing_new.add(box.name)

    def handed_over(self) -> None:
        """A hand-over has come to its end."""
        self._most = max(self._most, len(self.woken))
        for waiting in self.waiting.values():
            waiting.rivals |= self._met

    def overdue(self, most_wakes: int) -> list[tuple[str, int, int]]:
        """Those who have waited longer than their turn: name, for how many hand-overs, and within how many they are
        woken. With r readers who wait, of whom `most_wakes` are woken at a time, that is r / `most_wakes`, rounded up.
        """
        found = []
        for name, waiting in self.waiting.items():
            waited, allowed = self.number - waiting.since + 1, -(-len(waiting.rivals) // most_wakes)
            if waited >= allowed:
                found.append((name, waited, allowed))
        return found

    def seen(self) -> WakesSeen:
        return WakesSeen(self._most, self._for_nothing)
