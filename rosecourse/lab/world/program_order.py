"""What each program of a kernel reads and stores before and after its wait, where Triton's interpreter runs it.

The agreement between kernels that start early, which is kept by every kernel of a step:

* A kernel may start once all programs of the one before it have said so, or have ended. What that one writes may not be
  there yet, so that it is read after the wait. Nothing is stored before the wait, for others may still read there.
* A program lets the next kernel start after its own wait. Then, whenever a kernel runs, the kernel two before it has
  ended, and what is so old may be read before the wait.
* Every program waits, also one without work: a kernel that has ended says that the kernels before it have ended.
"""

from __future__ import annotations

import inspect
import linecache
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

import numpy as np

from .causes import Cause
from .error_reading import NOT_THEIRS
from .fault import Fault
from .written_memory import Places

MOVE = "move this line behind `wait()`"
READS_EARLY = "the kernel before may not have written it yet: " + MOVE
STORES_EARLY = "the kernels before may still read or write there: " + MOVE
STARTS_EARLY = (
    "the kernel after this one could run while the one before it is still at work, and take for ended what is two "
    "kernels old: call `start_next()` behind `wait()`"
)
NONE_WAITS = "without a wait it may run beside the kernel before it: call `wait()` before what that one writes is read"
SOME_WAIT = "other programs wait: look for the way on which this one gets past `wait()`; one without work waits, too"
A_SIXTEENTH = 16
LAUNCHER = "GridExecutor.__call__"  # of the interpreter: what has called it is no kernel


class Access(NamedTuple):
    """A read or a store. addresses: those that its mask lets through. line: of the learner's code, told in words."""

    tensor: str
    addresses: np.ndarray
    line: str


@dataclass
class Program:
    """One program of a launch, until now."""

    number: tuple[int, int, int]
    waits: int = 0
    starts: int = 0
    stored: bool = False
    fault: Fault | None = None  # the first
    late_start: bool = False  # the next kernel may start, and all but the end is done
    early: dict[str, int] = field(default_factory=dict)  # tensor -> how many of its numbers are read before the wait
    late: dict[str, int] = field(default_factory=dict)  # of those that were there before the step: after the wait
    in_turn: dict[str, int] = field(default_factory=dict)  # before it, where the launch may not start early
    late_lines: dict[str, str] = field(default_factory=dict)
    asked: dict[str, list[np.ndarray]] = field(default_factory=dict)  # where it reads them before the wait
    again: dict[str, str] = field(default_factory=dict)  # tensor -> the line that reads some of them after it, too

    def hear(self, what: str) -> None:
        """`wait` or `start`, from the kernel."""
        if what == "wait":
            self.waits += 1
            return
        self.starts += 1
        self.late_start |= self.stored and self.starts == 1

    @property
    def asked_late(self) -> list[str]:
        """The tensors of which less than a sixteenth is read before the wait."""
        if not self.waits:
            return list(self.in_turn)
        return [name for name, n in self.late.items() if self.early.get(name, 0) * A_SIXTEENTH < n]


class Launched:
    """A launch, program by program. early: whether it may start early. newest: what the kernel before has written;
    step: what the kernels of the step have written so far."""

    def __init__(self, kernel: str, early: bool, newest: Places, step: Places) -> None:
        self.kernel, self.early, self.newest, self.step = kernel, early, newest, step
        self.programs: list[Program] = []
        self.stored = Places()

    def begin(self, number: tuple[int, int, int]) -> None:
        """The next program begins."""
        self.programs.append(Program(number))

    def hear(self, what: str) -> None:
        program = self.programs[-1]
        if what == "start" and not program.waits and self.early:
            told = f"{self._who(program)} lets the next kernel start before its own wait"
            self._blame(Fault(told, (_their_line(),), STARTS_EARLY, cause=Cause.STARTED_TOO_EARLY))
        program.hear(what)

    def read(self, access: Access) -> None:
        program = self.programs[-1]
        if not self.early or program.waits:
            old = int((~self.step.has(access.addresses)).sum())
            asked = program.late if program.waits else program.in_turn
            if old:
                asked[access.tensor] = asked.get(access.tensor, 0) + old
                program.late_lines.setdefault(access.tensor, access.line)
            if program.waits:
                if any(np.isin(access.addresses, asked).any() for asked in program.asked.get(access.tensor, ())):
                    program.again.setdefault(access.tensor, access.line)
                return
        elif self.newest.has(access.addresses).any():
            told = f"{self._who(program)} reads `{access.tensor}`, which the kernel before writes, before its wait"
            self._blame(Fault(told, (access.line,), READS_EARLY, cause=Cause.READ_BEFORE_WAIT))
        old = access.addresses[~self.step.has(access.addresses)]
        program.asked.setdefault(access.tensor, []).append(old)
        program.early[access.tensor] = program.early.get(access.tensor, 0) + len(access.addresses)

    def store(self, access: Access) -> None:
        program = self.programs[-1]
        if self.early and not program.waits:
            told = f"{self._who(program)} stores into `{access.tensor}` before its wait"
            self._blame(Fault(told, (access.line,), STORES_EARLY, cause=Cause.STORED_BEFORE_WAIT))
        program.stored = True
        self.stored.add_addresses(access.addresses)

    def fault(self) -> Fault | None:
        """What is wrong with the order in a program, the first that has something; None if nothing is."""
        if not self.early:
            return None
        if not any(program.waits for program in self.programs):
            told = f"no program of `{self.kernel}` waits, and it is launched so that it may start early"
            return Fault(told, reason=NONE_WAITS, cause=Cause.WAIT_MISSING)
        for program in self.programs:
            if not program.waits:
                told = f"{self._who(program)} ends without a wait"
                return Fault(told, reason=SOME_WAIT, cause=Cause.WAIT_MISSING)
            if program.fault:
                return program.fault
        return None

    def _who(self, program: Program) -> str:
        return f"program {program.number} of `{self.kernel}`"

    def _blame(self, fault: Fault) -> None:
        self.programs[-1].fault = self.programs[-1].fault or fault


def their_line_from(frame: FrameType | None) -> str:
    """The line of the learner's kernel that is under way, in the words of `error_reading.place`; empty for ours."""
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THEIRS):
        if frame.f_code.co_qualname == LAUNCHER:
            return ""
        frame = frame.f_back
    if frame is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"in line {frame.f_lineno}, in {frame.f_code.co_name}: {line or '(its text is not available)'}"


def _their_line() -> str:
    return their_line_from(inspect.currentframe())
