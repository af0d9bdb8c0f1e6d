"""What `check` answers: a verdict in plain words, with a picture of the moment in which a part went wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...lessons import LESSONS
from ...pages.html import bullets, headline, paragraph, prose, values
from ...pages.source import coloured
from ..world.causes import Cause
from ..world.fault import Fault

THEIR_LINE = re.compile(r"(?P<place>in line \d+, in [^:]*:) (?P<text>.*)")  # as `error_reading.place` tells it
IN_WORDS = {"because"}  # details that are no values


@dataclass(frozen=True, repr=False)
class Verdict:
    """What was found out about a part. The same part gives the same text.

    faults: what is wrong, the first in full. missing: what the lesson's idea would have saved. partly: whether the part
    saves something of it all the same. hint: what that is likely to come from. not_own: functions and kernels of the
    course's answer that ran in the part's place. unchecked: what could not be tried on this machine. done: what was
    tried and is right. remarks: what is not wrong, but worth knowing.
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
    def or_else(self) -> Cause | None:
        """Another cause that fits as well, where nothing that was tried decides between the two."""
        return self.faults[0].or_else if self.faults else None

    @property
    def passed(self) -> bool:
        """Whether it is correct, has the lesson's idea, is the learner's own, and everything could be tried."""
        return not (self.faults or self.missing or self.not_own or self.unchecked)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._body(), *(f"  Note: {remark}" for remark in self.remarks)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        body = _fault_page(self.faults) if self.faults else self._page()
        return headline(self._headline()) + body + "".join(paragraph(f"Note: {remark}") for remark in self.remarks)

    def _page(self) -> str:
        """What stands under the headline of a part that is correct."""
        page = bullets(self.done) + "".join(paragraph(f"Correct, but {line}") for line in self.missing)
        page += paragraph(self.hint, "Perhaps:") if self.hint else ""
        page += paragraph(f"the course's {', '.join(self.not_own)} did the work", "Not your own:") * bool(self.not_own)
        page += "".join(paragraph(line, "Not checked:") for line in self.unchecked)
        return page + (paragraph(self._next(), "Next:") if self.passed else "")

    def _next(self) -> str:
        """What a learner does whose part has passed."""
        later = [rung for rung in LESSONS if rung.number > self.lesson]
        then = f" The next lesson is {later[0].number}, {later[0].title}." if later else ""
        change = 'the diffs under "The change", which unfold when their cells are run now'
        return f"race it, compare it with {change}, and hunt the bug.{then}"

    def _headline(self) -> str:
        name = f"{self.part}, lesson {self.lesson}"
        if self.faults:
            first = self.faults[0].headline
            return f"✗ {name}: not right yet{f': {first}' if first else ''}."
        if self.missing and self.partly:
            return f"✗ {name}: correct, but not yet with all of the lesson's idea."
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


def _fault_page(faults: tuple[Fault, ...]) -> str:
    """The first fault in full, with the blocks at that moment, and where there is more of it."""
    first, (again, also) = faults[0], _more(faults)
    page = (paragraph(first.tried, "Tried:") if first.tried else "") + paragraph(first.what, "Wrong:")
    page += _details_page(first.details)
    page += paragraph(first.reason, "Perhaps:") if first.reason else ""
    page += paragraph(again, "Also in:") if again else ""
    page += "<p><b>Also wrong:</b></p>" + bullets(also) if also else ""
    return page + (f"<p>The blocks at that moment:</p>{first.picture.svg}" if first.picture else "")


def _details_page(details: tuple[str, ...]) -> str:
    """The learner's line in the colours of code, and a table of what was expected and found."""
    page, rows = "", []
    for detail in details:
        line = THEIR_LINE.fullmatch(detail)
        label, colon, value = detail.partition(": ")
        if line:
            page += f"<p>{prose(line['place'])}</p>{coloured(line['text'])}"
        elif colon and label not in IN_WORDS:
            rows.append((label, value.strip()))
        else:
            page += paragraph(detail)
    return page + values(rows)


def _in_full(fault: Fault) -> list[str]:
    lines = [f"  Tried:    {fault.tried}"] if fault.tried else []
    lines += [f"  Wrong:    {fault.what}", *(f"            {line}" for line in fault.details)]
    return lines + ([f"  Perhaps:  {fault.reason}"] if fault.reason else [])


def _in_short(faults: tuple[Fault, ...]) -> list[str]:
    again, also = _more(faults)
    lines = [f"  Also in:  {again}"] if again else []
    return lines + (["  Also wrong:", *(f"    {line}" for line in also)] if also else [])


def _more(faults: tuple[Fault, ...]) -> tuple[str, list[str]]:
    """The other scenarios in which the first fault shows, and a line for each other fault with its scenarios."""
    kinds: list[list[Fault]] = []
    for fault in faults:
        kind = next((kind for kind in kinds if fault.same_as(kind[0])), None)
        if kind is None:
            kinds.append([fault])
        else:
            kind.append(fault)
    again, *others = ("; ".join(each.tried for each in kind[1:]) for kind in kinds)
    lines = [f"{kind[0].tried}: {kind[0].what}" for kind in kinds[1:]]
    return again, [f"{line}. Also in: {places}" if places else line for line, places in zip(lines, others, strict=True)]
