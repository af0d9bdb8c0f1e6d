"""What other engines reach under this course's workloads: data/others.csv."""

from __future__ import annotations

import pandas as pd

from ..config import DATA
from ..lessons.workloads import ARTICLES
from .csv_table import read_table

OTHERS = DATA / "others.csv"
COLUMNS: dict[str, type] = {
    **dict.fromkeys(("engine", "version", "configuration", "command", "workload"), str),
    **dict.fromkeys(("lowest", "highest"), float),
    **dict.fromkeys(("gpu", "date"), str),
}


def other_engines() -> pd.DataFrame:
    """Completion tokens a second of whole runs of other engines, one workload a row.

    The model has GPT-2's shape (124M), random weights and float16; all requests have the same prompt. Columns: engine,
    version, configuration, command (of this course, that measures it anew, or that there is none), workload (a key of
    `ARTICLES`), lowest and highest (tokens/s, alike for a single run), gpu, date. Raises `RosecourseError` for a file
    that cannot be read.
    """
    return read_table(OTHERS, COLUMNS, _require_possible)


def _require_possible(rows: pd.DataFrame) -> None:
    """Raise `ValueError` for a workload that is not known, or an impossible figure."""
    if unknown := set(rows.workload) - set(ARTICLES):
        raise ValueError(f"it has the workload {min(unknown)!r:.40}, which is none of {', '.join(ARTICLES)}")
    if not ((rows.lowest > 0) & (rows.lowest <= rows.highest)).all():
        raise ValueError("it has figures that are not positive, or not in order")
