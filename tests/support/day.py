"""The cases of the day: of many that take long, each is played once in so many days."""

import os
import random
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

BY_DAY = "DRAWN_BY"
DAY = int(os.environ.setdefault(BY_DAY, str(date.today().toordinal())))  # all processes of a run get the same

EVERY = 5  # days: so often comes a long test

Case = TypeVar("Case")


def of_the_day(cases: Sequence[Case], n: int, name: str, day: int = DAY) -> list[Case]:
    """n of the cases, or all if there are no more. They change with the day, and in ceil(len(cases) / n) days each
    comes at least once.

    name: of what they are cases of; their order, which does not change, is drawn by it.
    """
    if len(cases) <= n:
        return list(cases)
    order = random.Random(name).sample(cases, len(cases))
    first = day * n % len(cases)
    return (order + order)[first : first + n]


def turns_of_the_day(cases: Sequence[Case], day: int = DAY) -> dict[Case, int]:
    """Those of the day, each of which comes every `EVERY` days, and how often it has come; all if they are few."""
    if len(cases) < EVERY:
        return dict.fromkeys(cases, day)
    order = random.Random("long").sample(cases, len(cases))
    return {case: (day + n) // EVERY for n, case in enumerate(order) if (day + n) % EVERY == 0}
