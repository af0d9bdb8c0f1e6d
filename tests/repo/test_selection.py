"""Which tests are run depends on nothing: not on the day, and not on the order of sets."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import selected

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["tests/engine", "tests/kernels", "tests/kv", "tests/lab"]
LATER = "import time\nnow = time.time\ntime.time = lambda: now() + 400 * 86_400\n"  # dates ask it too


def collected(folder, hash_seed):
    """The ids of a run in a process of its own, in which sitecustomize.py of a folder is imported first."""
    known = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *FOLDERS]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | known, stdout=subprocess.PIPE, text=True)


def test_the_same_tests_on_two_days_and_with_two_hash_seeds(tmp_path):
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "sitecustomize.py").write_text(LATER)
    runs = [collected(tmp_path, "1"), collected(tmp_path / "later", "2")]
    one, other = ([line for line in run.communicate()[0].splitlines() if "::" in line] for run in runs)
    assert one == other
    assert len(one) > 3_000


class Case:
    """As pytest has a case of a test, with the numbers of its values; n: of its mark."""

    def __init__(self, *numbers, n=()):
        self.callspec = self
        self.indices = dict(enumerate(numbers))
        self.args = n

    def get_closest_marker(self, name):
        return self


@pytest.mark.parametrize("sizes", [(3,), (2, 5), (4, 3, 7), (1, 1)])
def test_each_value_of_each_axis_is_in_a_case(sizes):
    grid = [Case(*numbers) for numbers in itertools.product(*map(range, sizes))]
    chosen = selected(grid)
    assert {pair for case in chosen for pair in case.indices.items()} == {
        (axis, value) for axis, size in enumerate(sizes) for value in range(size)
    }
    assert len(chosen) == max(sizes)


def test_a_number_of_cases_is_spread_over_all():
    chosen = selected([Case(number, n=(3,)) for number in range(10)])
    assert [case.indices[0] for case in chosen] == [0, 3, 6]
    assert len(selected([Case(0, n=(3,))])) == 1
