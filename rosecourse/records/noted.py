"""Figures that were noted once, in CSV files of data/: the articles', other engines', and a few that cells printed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..config import DATA
from ..errors import RosecourseError
from ..lessons import lesson as lesson_of

PUBLISHED, OTHERS, PREFILLS, PROTOTYPE = (
    DATA / f"{name}.csv" for name in ("published", "others", "prefills", "prototype")
)
NO_FIGURE = dict.fromkeys(("before", "after"), "")  # an empty cell
HEAD = "a prototype, NVIDIA H200, 2026-11-21"


def noted(path: Path) -> pd.DataFrame:
    """The rows of a file; empty cells are empty texts, and NaN in columns of numbers.

    Raises `RosecourseError` for a file that cannot be read.
    """
    try:
        return pd.read_csv(path, dtype={"lesson": str}, keep_default_na=False, na_values=NO_FIGURE)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{path} cannot be read ({why}): restore it from git") from error


def published_figures(lesson: str | None = None) -> pd.DataFrame:
    """The figures that the articles published, and those of their original code on an H200; one a row.

    Columns: lesson, workload, metric, statistic (empty where none was stated), unit, before, after (NaN where there is
    none), stated (the change in the article's own words), gpu, source. lesson: one lesson's rows; None is all rows,
    also those of lesson `newest`, the original code's later version. Raises `LessonError` for an unknown lesson.
    """
    rows = noted(PUBLISHED)
    return rows if lesson is None else rows[rows.lesson == lesson_of(lesson).number].reset_index(drop=True)


def other_engines() -> pd.DataFrame:
    """Completion tokens a second of whole runs of other engines, one workload a row.

    The model has GPT-2's shape (124M), random weights and float16; all requests have the same prompt. Columns: engine,
    version, configuration, command (of this course, that measures it again, or that there is none), workload, lowest
    and highest (tokens/s, alike for a single run), gpu, date.
    """
    return noted(OTHERS)


def recorded_prefills(table: str) -> pd.DataFrame:
    """A table that cells of 068 have printed on a GPU, in milliseconds: cases by what was measured.

    table: `threads`, `pads` or `graphs`. Its `attrs` hold the provenance.
    """
    rows = noted(PREFILLS)
    found = rows[rows.table == table]
    wide = found.pivot(index="case", columns="measure", values="milliseconds")
    wide = wide.loc[found.case.unique(), found.measure.unique()].rename_axis(index=None, columns=None)
    first = found.iloc[0]
    wide.attrs["provenance"] = (
        f"Recorded by this cell on one {first.gpu}, {first.date}, {first.versions.replace(';', ',')}, "
        f"commit {first.commit}."
    )
    return wide


def prototype_facts(number: str) -> pd.DataFrame:
    """What a prototype measured of the ideas of 070 or 071, before the course had them: a row for each, in words.

    The prototype was another engine with the same kernels by and large; 64 requests if nothing else is said.
    """
    facts = noted(PROTOTYPE).query("lesson == @number")
    return pd.DataFrame({HEAD: {f.what: f"{_range(f.lowest, f.highest)} {f.unit}" for f in facts.itertuples()}})


def _range(lowest: float, highest: float) -> str:
    return f"{lowest:g}" if lowest == highest else f"{lowest:g} to {highest:g}"
