"""What a pipeline does: which steps were launched and landed, what the host has waited for, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...request.session import InferenceSession
from .fault import Fault
from .late_device import HostCopy, LateDevice
from .tags import letter


@dataclass(eq=False)
class Launched:
    """A step that was launched. number: counted from 1. tables: those that its sessions had. tokens: what it makes, a
    token of each row. told: how much the device had been told then. record: what the part keeps of it."""

    number: int
    sessions: list[InferenceSession]
    tables: list[Any]
    user: Any
    tokens: list[int]
    told: int
    record: Any = None

    @property
    def name(self) -> str:
        return f"step {self.number}"


@dataclass(frozen=True)
class FlightsSeen:
    """What was counted in a step. idle: waits after which the device had nothing left to do. copies: to the host.
    ahead: how many steps the part lets the host be ahead."""

    waits: int = 0
    idle: int = 0
    copies: int = 0
    ahead: int = 0


NO_FLIGHTS = FlightsSeen()


class FlightLog:
    """pending: steps that have not landed, the oldest first. landed: the others. fault: the first that was found.
    number: of the newest.
    forgotten: whether the rows were told that nobody knows what is on the device, since the last launch."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.pending: list[Launched] = []
        self.landed: list[Launched] = []
        self.runs: list[Launched] = []  # of the call that is under way
        self.fault: Fault | None = None
        self.forgotten = False
        self.failure: BaseException | None = None  # what the next run of the step raises
        self._names: dict[InferenceSession, str] = {}
        self.number = 0
        self.begin()

    def begin(self) -> None:
        """From here on is counted."""
        self._waits, self._copies = len(self.device.waits), len(self.device.copies)

    def seen(self) -> FlightsSeen:
        waits = [wait for wait in self.device.waits[self._waits :] if wait.during != "abandon"]
        copies = len(self.device.copies) - self._copies
        return FlightsSeen(len(waits), sum(wait.leaves_idle for wait in waits), copies)

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """A method of the part is called in here."""
        self.runs = []
        self.device.during, self.device.has_failed = method, False
        try:
            yield
        finally:
            self.device.during = ""

    def ran(self, sessions: Sequence[InferenceSession], tokens: list[int]) -> Launched:
        """The part has run the step."""
        self.number += 1
        tables = [session.table for session in sessions]
        self.runs.append(Launched(self.number, list(sessions), tables, None, tokens, self.device.told + 1))
        self.forgotten = False
        return self.runs[-1]

    def name(self, session: InferenceSession, name: str) -> None:
        """What a session is called."""
        self._names[session] = name

    def name_of(self, session: InferenceSession) -> str:
        return self._names.setdefault(session, letter(len(self._names)))

    def names_of(self, sessions: Sequence[InferenceSession]) -> str:
        return ", ".join(map(self.name_of, sessions)) or "no session"

    def overwritten(self, step: Launched) -> HostCopy | None:
        """A copy of another step into the memory to which this one's tokens had been copied; None if there is none."""
        copies = self.device.copies
        for place, copy in enumerate(copies):
            if copy.of == step.number:
                over = (later for later in copies[place + 1 :] if later.of != copy.of and later.overlaps(copy))
                if (first := next(over, None)) is not None:
                    return first
        return None

    def was_copied(self, step: Launched) -> bool:
        """Whether its tokens were sent to the host before the next step overwrote them."""
        return any(copy.of == step.number for copy in self.device.copies)

    def recorded_too_early(self, step: Launched) -> bool:
        """Whether the part has waited behind the run of a step, and not behind the copy of its tokens."""
        behind = max((copy.told for copy in self.device.copies if copy.of == step.number), default=0)
        return any(step.told <= wait.for_told < behind for wait in self.device.waits if wait.during == "land")
