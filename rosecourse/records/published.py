"""The published figures: data/published.csv."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..config import DATA
from ..errors import RosecourseError
from ..lessons import lesson as lesson_of
from ..measure.metrics import UNITS

PUBLISHED = DATA / "published.csv"
NUMBERS = ("before", "after")
COLUMNS: dict[str, type] = dict.fromkeys(("lesson", "workload", "metric", "statistic", "unit"), str)
COLUMNS |= dict.fromkeys(NUMBERS, float) | dict.fromkeys(("stated", "gpu", "source"), str)
NO_FIGURE = dict.fromkeys(NUMBERS, "")  # an empty cell


def published_figures(lesson: str | None = None) -> pd.DataFrame:
    """The figures that the articles published, and those of their original code on an H200; one a row.

    Columns: lesson, workload, metric, statistic (empty where none was stated), unit, before, after (NaN where there is
    none), stated (the change in the article's own words), gpu, source. lesson: one lesson's rows; None is all rows,
    also those of lesson `newest`, the original code's later version. Raises `LessonError` for an unknown lesson.
    """
    try:
        rows = pd.read_csv(PUBLISHED, dtype=COLUMNS, keep_default_na=False, na_values=NO_FIGURE)
        _require_whole(rows)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{PUBLISHED} cannot be read ({why}): restore it from git") from error
    return rows if lesson is None else rows[rows.lesson == lesson_of(lesson).number].reset_index(drop=True)


def _require_whole(rows: pd.DataFrame) -> None:
    """Raise `ValueError` for a table that lacks a column or a value, or has an impossible figure."""
    if missing := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"it has no column {missing[0]!r}")
    filled = rows.drop(columns=["before", "statistic", "stated"])  # the others are never empty
    if (filled.isna() | filled.eq("")).any(axis=None):
        raise ValueError("it has a row that lacks something")
    if unknown := set(rows.metric) - set(UNITS):
        raise ValueError(f"it has the metric {min(unknown)!r:.40}, which is none of {', '.join(UNITS)}")
    if not ((rows.after > 0) & np.isfinite(rows.after)).all() or not (rows.before.isna() | (rows.before > 0)).all():
        raise ValueError("it has a figure that is not positive")
