"""Which notebook has a lesson: its own, but for the rungs that share the page of the rung before them."""

from __future__ import annotations

from pathlib import Path

SHARED = {"063": "062_one_table", "065": "064_rows_that_stay"}


def page_of(number: str) -> str:
    """The name of the notebook that has a lesson, as a pattern for `Path.glob`."""
    return f"{SHARED.get(number, f'{number}_*')}.ipynb"


def lessons_on(page: Path) -> list[str]:
    """The numbers of a notebook's lessons, its own first."""
    return [page.stem[:3], *(number for number, name in SHARED.items() if name == page.stem)]
