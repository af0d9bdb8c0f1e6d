"""Where the notebooks are, and the learner's copy of them: `notebooks/` and `my/`, side by side in the repository."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError

NOTEBOOKS, DESK = "notebooks", "my"
START = "000_start_here.ipynb"
END = "072_the_whole_ladder.ipynb"  # it looks back: no rung of the ladder, and nothing to build in it


def repository(folder: Path) -> Path:
    """The nearest folder, this one or one above it, that holds the notebooks. Raises `ConfigError` if there is none."""
    for place in (folder, *folder.parents):
        if _holds_notebooks(place):
            return place
    raise ConfigError(f"{folder} is not in the course's repository: run this where {NOTEBOOKS}/{START} is, or below")


def desk_here() -> Path | None:
    """The learner's folder, if this process works in it; None for every other process, such as a test's or an author's.

    Jupyter starts a notebook's kernel in the notebook's folder. So a lesson that is run from `my/` is the learner's,
    and one that is run from `notebooks/` is not.
    """
    try:
        folder = Path.cwd()
    except OSError:  # the folder has been removed
        return None
    return folder if folder.name == DESK and _holds_notebooks(folder.parent) else None


def _holds_notebooks(folder: Path) -> bool:
    return (folder / NOTEBOOKS / START).is_file()
