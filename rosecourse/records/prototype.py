"""What a prototype of lessons 070 and 071 measured, before the course had them: data/prototype.csv."""

from __future__ import annotations

import pandas as pd

from ..config import DATA

PROTOTYPE = DATA / "prototype.csv"
HEAD = "a prototype, NVIDIA H200, 2026-11-21"


def prototype_facts(number: str) -> pd.DataFrame:
    """What was measured of the ideas of a lesson: a row for each, in words. No recording of the course repeats it.

    The prototype was another engine with the same kernels by and large; 64 requests if nothing else is said. number: of
    the lesson; one without such facts gets an empty table.
    """
    facts = pd.read_csv(PROTOTYPE, dtype={"lesson": str}).query("lesson == @number")
    found = {fact.what: f"{_range(fact.lowest, fact.highest)} {fact.unit}" for fact in facts.itertuples()}
    return pd.DataFrame({HEAD: found})


def _range(lowest: float, highest: float) -> str:
    return f"{lowest:g}" if lowest == highest else f"{lowest:g} to {highest:g}"
