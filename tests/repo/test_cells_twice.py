"""A learner may run a cell again, in place: no quick cell raises the second time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rosecourse.desk.notebooks import APPENDIX, HUNTS, all_notebooks_in, notebooks_in

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
LESSONS = [path for path in notebooks_in(FOLDER) if path.stem[:3] in ("000", "035", "036", "061")]
FOLDERS = [[path for path in all_notebooks_in(FOLDER) if path.parent.name == name] for name in (HUNTS, APPENDIX)]
GROUPS = [*([path] for path in LESSONS), *filter(None, FOLDERS)]  # each in a process of its own


@pytest.mark.parametrize("paths", GROUPS, ids=lambda paths: paths[0].relative_to(FOLDER).as_posix())
def test_a_quick_cell_may_be_run_twice(paths):
    program = [sys.executable, ROOT / "tests" / "repo" / "cells_twice.py", *paths]
    settings = os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(program, cwd=FOLDER, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
