"""What `check` answers: a verdict in plain words, with a picture of the moment in which a part went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ..world.causes import Cause
from ..world.fault import Fault


@dataclass(frozen=True, repr=False)
class Verdict:
    """What was found out about a part. The same part gives the same text.

    faults: what is wrong, the first in full. missing: what the lesson's idea would have saved. hint: what that is
    likely to come from. not_own: functions and kernels of the course's answer that ran in the part's place. unchecked:
    what could not be tried on this machine. done: what was tried and is right. remarks: what is not wrong, but worth
    knowing.
    """

    part: str
    lesson: str
    faults: tuple[Fault, ...] = ()
    missing: tuple[str, ...] = ()
    partly: bool = False
    hint: str = ""
    not_own: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether the part does what a part of its kind has to do, with the lesson's idea or without it."""
        return not self.faults

    @property
    def cause(self) -> Cause | None:
        """Why it has not passed, of the closed list; None if it has, or if something could not be tried."""
        if self.faults:
            return self.faults[0].cause
        if self.not_own:
            return Cause.NOT_OWN_WORK
        return Cause.GOAL_MISSED if self.missing else None

    @property
    def passed(self) -> bool:
        """Whether it is correct, has the lesson's idea, is the learner's own, and everything could be tried."""
        return not (self.faults or self.missing or self.not_own or self.unchecked)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._body(), *(f"  Note: {remark}" for remark in self.remarks)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        picture = self.faults[0].picture if self.faults else None
        drawn = f"<p>The blocks at that moment:</p>{picture.svg}" if picture else ""
        return f'<pre style="white-space: pre-wrap">{escape(str(self))}</pre>{drawn}'

    def _headline(self) -> str:
        name = f"{self.part}, lesson {self.lesson}"
        if self.faults:
            return f"✗ {name}: not right yet{f': {self.cause.headline}' if self.cause else ''}."
        if self.missing and self.partly:
            return f"✗ {name}: correct, but not yet with the idea of the lesson in every kind of step."
        if self.missing:
            return f"✗ {name}: correct, but without the idea of the lesson."
        if self.not_own:
            return f"✗ {name}: correct, with the course's own work inside: it is not yours."
        if self.unchecked:
            return f"? {name}: correct as far as it could be tried here."
        return f"✓ {name}: passed."

    def _body(self) -> list[str]:
        if self.faults:
            return [*_in_full(self.faults[0]), *_in_short(self.faults)]
        lines = [f"  {line}" for line in self.done]
        lines += [f"  Correct, but {line}" for line in self.missing]
        lines += [f"  Perhaps:  {self.hint}"] if self.hint else []
        lines += [f"  Not your own: the course's {', '.join(self.not_own)} did the work"] if self.not_own else []
        return lines + [f"  Not checked: {line}" for line in self.unchecked]


def _in_full(fault: Fault) -> list[str]:
    lines = [f"  Tried:    {fault.tried}"] if fault.tried else []
    lines += [f"  Wrong:    {fault.what}", *(f"            {line}" for line in fault.details)]
    return lines + ([f"  Perhaps:  {fault.reason}"] if fault.reason else [])


def _in_short(faults: tuple[Fault, ...]) -> list[str]:
    """The scenarios in which there is more of it, and what is wrong where that is another fault."""
    lines = []
    for n, fault in enumerate(faults[1:], start=1):
        again = any(fault.same_as(told) for told in faults[:n])
        lines.append(f"    {fault.tried}" if again else f"    {fault.tried}: {fault.what}")
    return ["  Also wrong:", *lines] if lines else []
