"""Which lessons `check` has passed in this process. A notebook is a process of its own."""

from __future__ import annotations


class Passed:
    """The numbers of the lessons whose check a part has passed."""

    def __init__(self) -> None:
        self._numbers: set[str] = set()

    def add(self, number: str) -> None:
        self._numbers.add(number)

    def __contains__(self, number: str) -> bool:
        return number in self._numbers


PASSED = Passed()
