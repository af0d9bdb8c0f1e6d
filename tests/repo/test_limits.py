"""A test that hangs, and a cell of a notebook that hangs: each fails after its time, and the others run."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.managers import time_limit

pytest.importorskip("pytest_timeout")
pytest.importorskip("nbval")
nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import threading

def test_it_hangs():
    threading.Event().wait()

def test_it_passes():
    pass
"""


def run_with_limit(seconds, folder):
    """What pytest says of a folder of tests, with the settings of the repository and another limit."""
    settings = (ROOT / "conftest.py").read_text()
    assert "LIMIT = 180 " in settings
    (folder / "conftest.py").write_text(settings.replace("LIMIT = 180 ", f"LIMIT = {seconds} "))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-config --strict-markers\n")
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-p", "no:xdist", "-v"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True).stdout


def test_what_hangs_fails_and_the_others_run(tmp_path):
    (tmp_path / "test_hanging.py").write_text(TESTS)
    cells = [nbformat.v4.new_code_cell(code) for code in ("1", "import time; time.sleep(120)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "hanging.ipynb")

    said = run_with_limit(2, tmp_path)

    assert re.search(r"test_it_hangs FAILED", said)
    assert re.search(r"Timeout \(>2(\.0)?s\) from pytest-timeout", said)
    assert re.search(r"test_it_passes PASSED", said)
    assert re.search(r"Cell 0 \w*PASS", said)
    assert "Cell 1: Timeout of 2 seconds exceeded executing cell" in said


def test_a_shorter_limit_inside_a_test_leaves_the_limit_of_the_test():
    handler, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with time_limit():
        assert signal.getitimer(signal.ITIMER_REAL)[0] < left
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL)[0] > left - 1
