"""Tables of figures that were noted once, in CSV files of data/: read whole, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from ..errors import RosecourseError


def read_table(path: Path, columns: Mapping[str, type], require: Callable[[pd.DataFrame], None]) -> pd.DataFrame:
    """The rows of a file that has these columns, and a value in each.

    require: raises `ValueError` for figures that cannot be. Raises `RosecourseError` for a file that cannot be read.
    """
    try:
        rows = pd.read_csv(path, dtype=dict(columns), keep_default_na=False)
        if missing := [name for name in columns if name not in rows]:
            raise ValueError(f"it has no column {missing[0]!r}")
        if rows.eq("").any(axis=None):
            raise ValueError("it has a row that lacks something")
        require(rows)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{path} cannot be read ({why}): restore it from git") from error
    return rows
