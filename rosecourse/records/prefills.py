"""Prefills that notebook 068 has measured on a GPU, for where there is none: data/prefills.csv."""

from __future__ import annotations

import pandas as pd

from ..config import DATA
from ..errors import RosecourseError

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
    try:
        rows = pd.read_csv(PREFILLS, dtype=COLUMNS, keep_default_na=False)
        _require_whole(rows)
        found = rows[rows.table == table]
        wide = found.pivot(index="case", columns="measure", values="milliseconds")
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{PREFILLS} cannot be read ({why}): restore it from git") from error
    wide = wide.loc[found.case.unique(), found.measure.unique()].rename_axis(index=None, columns=None)
    first = found.iloc[0]
    wide.attrs["provenance"] = (
        f"Recorded by this cell on one {first.gpu}, {first.date}, {first.versions.replace(';', ',')}, "
        f"commit {first.commit}."
    )
    return wide


def _require_whole(rows: pd.DataFrame) -> None:
    """Raise `ValueError` for rows that lack a column, a value or a table, or have an impossible figure."""
    if missing := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"it has no column {missing[0]!r}")
    if rows.eq("").any(axis=None):
        raise ValueError("it has a row that lacks something")
    if set(rows.table) != set(TABLES):
        raise ValueError(f"its tables are not {', '.join(TABLES)}")
    if not (rows.milliseconds > 0).all():
        raise ValueError("it has figures that are not positive")
