"""Which tests are run depends on nothing: not on the day, and not on the order of sets."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATER = "import time\nnow = time.time\ntime.time = lambda: now() + 400 * 86_400\n"  # dates ask it too
GRIDS = """
import pytest

@pytest.mark.grid
@pytest.mark.parametrize("a", "abcd")
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize(("c", "d"), [(1, "x"), (1, "y"), (2, "x")])
def test_axes(a, b, c, d): ...

@pytest.mark.grid(3)
@pytest.mark.parametrize("seed", range(10))
def test_seeds(seed): ...

@pytest.mark.grid(shows=lambda fault: {fault[0]})
@pytest.mark.parametrize("fault", ["read 1", "read 2", "write 1", "wait 1", "write 2"])
def test_kinds(fault): ...
"""


def collecting(*places, folder=ROOT, hash_seed="0"):
    """A process that says the ids of these places; it first imports sitecustomize.py of a folder."""
    known = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *places]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | known, stdout=subprocess.PIPE, text=True)


def ids(process):
    return [line for line in process.communicate()[0].splitlines() if "::" in line]


def test_the_same_few_cases_on_two_days_show_each_value(tmp_path):
    (tmp_path / "test_grids.py").write_text(GRIDS)
    plugin = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]  # no conftest lies above a folder elsewhere
    (tmp_path / "sitecustomize.py").write_text(LATER)
    now = collecting(*plugin, str(tmp_path), hash_seed="1")
    later = collecting(*plugin, str(tmp_path), folder=tmp_path, hash_seed="2")
    found = ids(now)
    assert found == ids(later)
    chosen = [name.split("::")[1].rstrip("]").split("[") for name in found]
    axes = [case.split("-") for test, case in chosen if test == "test_axes"]
    assert [set(axis) for axis in zip(*axes, strict=True)] == [{*"12"}, {*"xy"}, {*"012"}, {*"abcd"}]
    assert len(axes) == 4
    assert [case for test, case in chosen if test == "test_seeds"] == ["0", "3", "6"]
    assert [case for test, case in chosen if test == "test_kinds"] == ["read 1", "write 1"]  # r and w
