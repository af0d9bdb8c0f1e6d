"""Prefills that notebook 068 has measured on a GPU, for where there is none: data/prefills.csv."""

from __future__ import annotations

import pandas as pd

from ..config import DATA
from .csv_table import read_table

PREFILLS = DATA / "prefills.csv"
COLUMNS: dict[str, type] = dict.fromkeys(
    ("table", "case", "measure", "milliseconds", "gpu", "versions", "commit", "date"), str
) | {"milliseconds": float}
TABLES = ("threads", "pads", "graphs")


def recorded_prefills(table: str) -> pd.DataFrame:
    """A table that cells of 068 have printed on a GPU, in milliseconds: cases by what was measured.

    table: `threads`, `pads` or `graphs`. Its `attrs` hold the provenance. Raises `RosecourseError` for a file that
    cannot be read.
    """
    rows = read_table(PREFILLS, COLUMNS, _require_possible)
    found = rows[rows.table == table]
    wide = found.pivot(index="case", columns="measure", values="milliseconds")
    wide = wide.loc[found.case.unique(), found.measure.unique()].rename_axis(index=None, columns=None)
    first = found.iloc[0]
    wide.attrs["provenance"] = (
        f"Recorded by this cell on one {first.gpu}, {first.date}, {first.versions.replace(';', ',')}, "
        f"commit {first.commit}."
    )
    return wide


def _require_possible(rows: pd.DataFrame) -> None:
    """Raise `ValueError` for a file without one of the tables, or an impossible figure."""
    if set(rows.table) != set(TABLES):
        raise ValueError(f"its tables are not {', '.join(TABLES)}")
    if not (rows.milliseconds > 0).all():
        raise ValueError("it has figures that are not positive")
