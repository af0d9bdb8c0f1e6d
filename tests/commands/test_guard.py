"""A learner's file that misbehaves when `rosecourse lab` imports it: one line, and exit code 2."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rosecourse
from rosecourse.lab.checks import checking
from rosecourse.lab.exercises import guard, part_file
from tests.support.commands import lab

MUTE = "class Mute({}):\n    def __str__(self):\n        raise GeneratorExit\n    __repr__ = __str__\n\nraise Mute\n"
MINE = "\nclass Mine:\n    pass\n"
FILES = {
    "GeneratorExit": ("raise GeneratorExit", "line 1: GeneratorExit"),
    "CancelledError": ("import asyncio\nraise asyncio.CancelledError('x')", "line 2: CancelledError: x"),
    "exit code 0": ("import sys\nsys.exit(0)", "line 2: SystemExit: 0"),
    "a mute base exception": (MUTE.format("BaseException"), "line 6: Mute"),
    "an odd syntax error": ("raise SyntaxError('a', (5, 'x', 'y', 'z'))", "line 1: SyntaxError: a"),
    "a group": ("raise BaseExceptionGroup('g', [KeyboardInterrupt()])", "line 1: BaseExceptionGroup: g (1 sub-"),
    "no path": ("import sys\nsys.path = None\nraise OSError(3)", "line 3: OSError: 3"),
    "__getattr__": ("def __getattr__(name):\n    raise GeneratorExit", "line 2: GeneratorExit"),
}


@pytest.mark.parametrize(("text", "says"), FILES.values(), ids=FILES)
def test_an_import_that_misbehaves_costs_one_line(text, says, tmp_path, capsys, monkeypatch):
    """Hazard 40: nothing is checked then, and the process is as it was."""
    monkeypatch.setattr(checking, "check", None)  # would break if it were called
    (tmp_path / "part.py").write_text(text)
    path = sys.path
    assert lab.main([f"{tmp_path}/part.py:Mine"]) == 2
    error = capsys.readouterr().err
    assert sys.path is path
    assert error.count("\n") == 1
    assert error.startswith("rosecourse lab: error: part.py")
    assert says in error


def test_an_interrupt_of_the_import_is_one(tmp_path, capsys):
    (tmp_path / "part.py").write_text("raise KeyboardInterrupt")
    assert lab.main([f"{tmp_path}/part.py:Mine"]) == 130
    assert capsys.readouterr().err == ""


def test_an_import_that_does_not_end_is_told(tmp_path, monkeypatch):
    """Hazard 40: `late` ends the process; here it lets the import go on."""
    told = []
    monkeypatch.setattr(part_file, "LONGEST_IMPORT", 0.05)
    monkeypatch.setattr(part_file, "end_late", told.append)
    monkeypatch.setattr(part_file, "TOLD", told, raising=False)
    (tmp_path / "part.py").write_text(
        "import time\nfrom rosecourse.lab.exercises import part_file\nwhile not part_file.TOLD:\n    time.sleep(0.01)\n"
        + MINE
    )
    part_file.load_part(tmp_path / "part.py", "Mine")
    assert told == ["part.py is still at work after 0.05 seconds"]


def test_what_ends_in_time_is_left_alone():
    told = []
    with guard.guarded("x", 0.05, told.append):
        pass
    time.sleep(0.15)
    assert not told


@pytest.mark.parametrize("work", ["while True: pass", "import threading; threading.Event().wait()"])
def test_as_a_process_what_does_not_end_is_ended(work):
    code = (
        f"from rosecourse.lab.exercises.guard import end_with, guarded\nwith guarded('x', 0.2, end_with):\n    {work}"
    )
    env = os.environ | {"PYTHONPATH": str(Path(rosecourse.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "x is still at work after 0.2 seconds\n")
