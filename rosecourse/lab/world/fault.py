"""What is wrong with a part, in plain words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...pictures.sheet import Picture
from .causes import Cause

# What changes from scenario to scenario in the words for one fault: numbers, sessions, and a verb for one or for many.
SESSIONS = re.compile(r"\b[A-JL-UW-Z]\b(?:, [A-JL-UW-Z]\b)*(?: share\b| shares\b)?")  # without K and V
NUMBERS = re.compile(r"\d[\d., ]*")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a part.

    what: one line. details: what was expected and what was found, a line each. reason: what it is likely to come from.
    tried: the name of the scenario. picture: the blocks at that moment. cause: of the closed list; None only for a part
    of a kind that names no causes. or_else: another cause that all that was seen fits as well; None if there is none.
    """

    what: str
    details: tuple[str, ...] = ()
    reason: str = ""
    tried: str = ""
    picture: Picture | None = None
    cause: Cause | None = None
    or_else: Cause | None = None

    @property
    def headline(self) -> str:
        """What it is, in a few plain words; empty without a cause."""
        return "; or ".join(cause.headline for cause in (self.cause, self.or_else) if cause)

    def same_as(self, other: Fault) -> bool:
        """Whether it is the other fault, met once more: it may be at another place, in other sessions."""
        alike = _without_places(self.what) == _without_places(other.what)
        return alike or (bool(self.reason) and self.reason == other.reason)


class PartIsWrong(Exception):
    """Ends a scenario: `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


def _without_places(what: str) -> str:
    return NUMBERS.sub("#", SESSIONS.sub("X", what))
