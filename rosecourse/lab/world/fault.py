"""What is wrong with a part, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from ...pictures.blocks import Picture


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a part.

    what: one line. details: what was expected and what was found, a line each. reason: what it is likely to come from.
    tried: the name of the scenario. picture: the blocks at that moment.
    """

    what: str
    details: tuple[str, ...] = ()
    reason: str = ""
    tried: str = ""
    picture: Picture | None = None

    def same_as(self, other: Fault) -> bool:
        """Whether it is the other fault, met once more."""
        return self.what == other.what or (bool(self.reason) and self.reason == other.reason)


class PartIsWrong(Exception):
    """Ends a scenario: `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault
