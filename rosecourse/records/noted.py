"""Figures that were noted once, in CSV files of data/: the articles', and a few that cells printed on a GPU."""

from __future__ import annotations

import pandas as pd

from ..config import DATA
from ..lessons import lesson as lesson_of


def noted(name: str) -> pd.DataFrame:
    """The rows of data/<name>.csv; empty cells are empty texts, and NaN in columns of numbers."""
    numbers = {"before": "", "after": ""}
    return pd.read_csv(DATA / f"{name}.csv", dtype={"lesson": str}, keep_default_na=False, na_values=numbers)


def published_figures(lesson: str | None = None) -> pd.DataFrame:
    """The figures that the articles published, and those of their original code on an H200; one a row.

    Columns: lesson, workload, metric, statistic (empty where none was stated), unit, before, after (NaN where there is
    none), stated (the change in the article's own words), gpu, source. lesson: one lesson's rows; None is all rows,
    also those of lesson `newest`, the original code's later version. Raises `LessonError` for an unknown lesson.
    """
    rows = noted("published")
    return rows if lesson is None else rows[rows.lesson == lesson_of(lesson).number].reset_index(drop=True)


def recorded_prefills(table: str) -> pd.DataFrame:
    """A table about prefills before and after 068, measured on a GPU, in milliseconds: cases by what was measured.

    table: `threads`, `pads` or `graphs`. Its `attrs` hold the provenance.
    """
    rows = noted("prefills").query("table == @table")
    wide = rows.pivot(index="case", columns="measure", values="milliseconds")
    wide = wide.loc[rows.case.unique(), rows.measure.unique()].rename_axis(index=None, columns=None)
    one = rows.iloc[0]
    told = f"{one.gpu}, {one.date}, {one.versions.replace(';', ',')}, commit {one.commit}"
    wide.attrs["provenance"] = f"Recorded on one {told}."
    return wide


def prototype_facts(number: str) -> pd.DataFrame:
    """What a prototype measured of the ideas of 070, before the course had them: a row for each, in words."""
    facts = noted("prototype").query("lesson == @number").set_index("what")[["measured"]].rename_axis(None)
    return facts.set_axis(["a prototype, NVIDIA H200, 2026-11-21"], axis=1)
