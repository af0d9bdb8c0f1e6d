"""What was published and what was recorded, found and put side by side: data/published.csv and data/results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..config import DATA
from ..errors import RosecourseError
from ..lessons import lesson as lesson_of
from .archive import RESULTS
from .runs import HEADLINES, PERCENTILES, UNITS, Recorded, recorded

PUBLISHED = DATA / "published.csv"
NUMBERS = ("before", "after")
PUBLISHED_COLUMNS = dict.fromkeys(("lesson", "workload", "metric", "statistic", "unit"), str)
PUBLISHED_COLUMNS |= dict.fromkeys(NUMBERS, float) | dict.fromkeys(("stated", "gpu", "source"), str)
NO_FIGURE = dict.fromkeys(NUMBERS, "")  # an empty cell
COLUMNS = ["workload", "metric", "statistic", "unit", "before", "after", "times better", "gpu", "source"]


def published(lesson: str | None = None) -> pd.DataFrame:
    """The figures of the articles, and of their original code on an H200, as they were published; one a row.

    Columns: lesson, workload, metric, statistic (empty where none was stated), unit, before, after (NaN where there is
    none), stated (the change in the article's own words), gpu, source. lesson: one lesson's rows; None is all of them,
    those of lesson `newest` too, the original code's later version. Raises `LessonError` for an unknown lesson.
    """
    try:
        rows = pd.read_csv(PUBLISHED, dtype=PUBLISHED_COLUMNS, keep_default_na=False, na_values=NO_FIGURE)
        _check_published(rows)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{PUBLISHED} cannot be read ({why}): restore it from git") from error
    return rows if lesson is None else rows[rows.lesson == lesson_of(lesson).number].reset_index(drop=True)


def _check_published(rows: pd.DataFrame) -> None:
    """Raise `ValueError` for a table that lacks a column, or has a figure that is none."""
    if missing := [name for name in PUBLISHED_COLUMNS if name not in rows]:
        raise ValueError(f"it has no column {missing[0]!r}")
    filled = rows.drop(columns=["before", "statistic", "stated"])  # the others are never empty
    if (filled.isna() | filled.eq("")).any(axis=None):
        raise ValueError("it has a row that lacks something")
    if unknown := set(rows.metric) - set(UNITS):
        raise ValueError(f"it has the metric {min(unknown)!r:.40}, which is none of {', '.join(UNITS)}")
    if not ((rows.after > 0) & np.isfinite(rows.after)).all() or not (rows.before.isna() | (rows.before > 0)).all():
        raise ValueError("it has a figure that is not positive")


def beside_published(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> pd.DataFrame:
    """The published figures of a lesson and the recorded ones, metric by metric; without a recording the former alone.

    Columns: workload, metric, statistic, unit, before, after, times better, gpu, source. Compare what is
    `times better`, not the times: machines differ, and for 059 and 060 the schedules do too. By their figures (ITL x
    throughput = 256) the articles' engine kept all requests running, 16 of them in a step; this one finishes 16 and
    then admits the next.
    """
    theirs = published(lesson).drop(columns=["lesson", "stated"])
    ours = recorded(lesson, gpu, folder)
    if ours is not None:
        wanted = [(m, s) for m, s in zip(theirs.metric, theirs.statistic, strict=True) if s in ("mean", *PERCENTILES)]
        wanted = list(dict.fromkeys([*wanted, *(HEADLINES if not wanted else [])]))
        rows = [_recorded_row(ours, metric, statistic) for metric, statistic in wanted]
        theirs = pd.concat([theirs, pd.DataFrame(rows)], ignore_index=True) if len(theirs) else pd.DataFrame(rows)
    is_rate = theirs.unit == "tokens/s"
    theirs["times better"] = (theirs.after / theirs.before).where(is_rate, theirs.before / theirs.after)
    order = list(UNITS)
    return theirs[COLUMNS].sort_values("metric", key=lambda m: m.map(order.index), kind="stable", ignore_index=True)


def _recorded_row(ours: Recorded, metric: str, statistic: str) -> dict[str, Any]:
    told = ours.document["settings"]
    work = "{num_requests} requests x {max_new_tokens} tokens, batch {max_batch_size}".format(**told)
    return {
        "workload": f"{work} ({told['benchmark'].removeprefix('benchmark_')})",
        "metric": metric,
        "statistic": statistic,
        "unit": UNITS[metric],
        "before": ours.figure("before", metric, statistic),
        "after": ours.figure("after", metric, statistic),
        "gpu": ours.gpu,
        "source": f"recorded, {ours.source}, {ours.document['date'][:10]}",
    }
