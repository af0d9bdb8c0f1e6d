"""The results folder, data/results/<gpu>/: a recorded JSON file, and the tables beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from ..checks import require, shown
from ..config import DATA
from ..errors import RosecourseError
from ..lessons import LESSONS

RESULTS = DATA / "results"
SHIPPED_GPU = "nvidia-h200"  # the one whose recordings come with the course


def require_known(name: Any, known: Sequence[str], what: str) -> None:
    """Raise `ConfigError` unless a name is one of those that are known. what: what it should name."""
    fits = isinstance(name, str) and name in known
    require(fits, f"there is no {what} {shown(name)}: give one of {', '.join(known)}")


def sides_of(number: str) -> dict[str, str]:
    """The lessons whose rungs are `before` and `after` a lesson; before the first there is none."""
    numbers = [rung.number for rung in LESSONS]
    place = numbers.index(number)
    return ({"before": numbers[place - 1]} if place else {}) | {"after": number}


def read_results(name: str, tables: Sequence[str], folder: Path) -> tuple[dict[str, Any], list[pd.DataFrame]] | None:
    """A recorded JSON file and tables beside it, or None where it is not recorded.

    They are of the course's own GPU, or of the first that has such a file. folder: of all GPUs' folders. Raises
    `RosecourseError` for files that are damaged.
    """
    paths = sorted(folder.glob(f"*/{name}"), key=lambda path: (path.parent.name != SHIPPED_GPU, path))
    try:
        return _read(paths[0], tuple(tables), paths[0].stat().st_mtime_ns) if paths else None
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{paths[0]} or what is beside it cannot be read ({why}): restore it from git") from error


@lru_cache(maxsize=4)
def _read(path: Path, tables: tuple[str, ...], changed: int) -> tuple[dict[str, Any], list[pd.DataFrame]]:
    """changed: when, so that files that were written again are read again."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return document, [pd.read_csv(path.with_name(table), dtype={"lesson": str}) for table in tables]
