"""What other engines reach under this course's workloads: data/others.csv."""

from __future__ import annotations

import pandas as pd

from ..config import DATA
from ..errors import RosecourseError
from ..lessons.workloads import ARTICLES

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
    try:
        rows = pd.read_csv(OTHERS, dtype=COLUMNS, keep_default_na=False)
        _require_whole(rows)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{OTHERS} cannot be read ({why}): restore it from git") from error
    return rows


def _require_whole(rows: pd.DataFrame) -> None:
    """Raise `ValueError` for a table that lacks a column or a value, or has an impossible figure."""
    if missing := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"it has no column {missing[0]!r}")
    if rows.eq("").any(axis=None):
        raise ValueError("it has a row that lacks something")
    if unknown := set(rows.workload) - set(ARTICLES):
        raise ValueError(f"it has the workload {min(unknown)!r:.40}, which is none of {', '.join(ARTICLES)}")
    if not ((rows.lowest > 0) & (rows.lowest <= rows.highest)).all():
        raise ValueError("it has figures that are not positive, or not in order")
