"""rosecourse lab: a part in a file is checked and measured; what cannot be loaded costs one line and code 2."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rosecourse import lesson
from rosecourse.lab.checking.search import Outcome
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.lab.exercises import own_run, part_file
from rosecourse.lab.exercises.own_run import trouble_with
from tests.support.commands import lab

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_kv_append.py"
PART = f"{EXAMPLE}:MyKVAppend"


@pytest.fixture
def calls(monkeypatch):
    """What the command asks of `check` and `your_run`, which answer at once; `verdict` is the answer."""

    class Calls(list):
        verdict = Verdict("MyKVAppend", "060", done=("it was tried",))

    made = Calls()
    monkeypatch.setattr(checking, "check", lambda *asked: made.append(("check", asked)) or made.verdict)
    monkeypatch.setattr(own_run, "your_run", lambda part, number, _: made.append(("run", (part, number))))
    return made


def bad_call(capsys, *argv):
    """The one line of a command that ends with exit code 2."""
    assert lab.main(list(argv)) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("rosecourse lab: error: ")
    return lines[0].removeprefix("rosecourse lab: error: ")


def test_the_example_passes_the_real_check():
    """As it is called from a shell, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "rosecourse", "lab", PART, "--no-run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("✓ MyKVAppend, lesson 060: passed.")
    assert "Measuring" not in done.stdout


@pytest.mark.parametrize(("flags", "expected"), [([], 1), (["--threads", "2"], 2)])
def test_the_run_has_the_threads_that_suit_the_model(calls, flags, expected):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert lab.main([PART, *flags]) == 0
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_the_example_is_its_own_and_can_be_measured(small_model):
    part = part_file.load_part(EXAMPLE, "MyKVAppend")
    assert part.__bases__ == (object,)
    names = {node.attr for node in ast.walk(ast.parse(EXAMPLE.read_text())) if isinstance(node, ast.Attribute)}
    assert not any(name.startswith("_") for name in names)
    rung = lesson("060")
    assert trouble_with(rung.after.with_(kv_append=part), rung, small_model, "Mine") == ""


WRONG = {"wrong": Outcome("", (), "it is wrong")}


@pytest.mark.parametrize(
    ("flags", "verdict", "code", "asked", "number"),  # the default is the last lesson without Triton
    [
        (["--lesson", "038"], {"done": ("it was tried",)}, 0, ["check", "run"], "038"),
        (["--no-run"], {"done": ("it was tried",)}, 0, ["check"], "060"),
        ([], WRONG, 1, ["check"], "060"),
        ([], {"missing": ("still 192 calls",)}, 1, ["check", "run"], "060"),
    ],
)
def test_a_part_is_checked_and_measured_if_it_is_right(calls, capsys, flags, verdict, code, asked, number):
    calls.verdict = Verdict("MyKVAppend", number, **verdict)
    assert lab.main([PART, *flags]) == code
    assert [(what, part.__name__, of) for what, (part, of) in calls] == [(what, "MyKVAppend", number) for what in asked]
    assert capsys.readouterr().out.startswith(str(calls.verdict))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Mine", "SyntaxError"),
        ("x = 1\n  y = 2\n", "part.py, line 2: IndentationError: unexpected indent"),
        ("\nimport no_such_module\n", "part.py, line 2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    1 / 0\n\n\nf()\n", "part.py, line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('two\\nlines')\n", "part.py, line 2: SystemExit: two lines"),
        ("", "has no class 'Mine'"),
        ("Mine = 3\n", "is not a class"),
        ("x = '\0'", "source code string cannot contain null bytes"),
        (b"\xff\xfe\x00class", "part.py"),
    ],
)
def test_a_file_that_cannot_be_loaded_costs_one_line(text, says, calls, capsys, tmp_path):
    file = tmp_path / "part.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    path = list(sys.path)
    assert says in bad_call(capsys, f"{file}:Mine")
    assert sys.path == path
    assert not calls


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "Missing argument 'FILE.py:CLASS'. (see --help)"),
        (["no_colon.py"], "names no class: give a file and a class, such as examples/my_kv_append.py:MyKVAppend"),
        (["x.py:not a name"], "'x.py:not a name' names no class"),
        ([":Mine"], "':Mine' names no class"),
        ([f"{EXAMPLE.parent}:Mine"], "is no file: give one that is there"),
        ([PART, "--lesson", "042"], "'042' is not one of '036'"),
        ([PART, "--lesson", "035"], "'035' is not one of '036'"),
    ],
)
def test_a_bad_call_costs_one_line(argv, says, capsys):
    assert says in bad_call(capsys, *argv)


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("class Base:\n    pass\n")
    (tmp_path / "part.py").write_text("from neighbour_of_mine import Base\n\n\nclass Mine(Base):\n    pass\n")
    assert part_file.load_part(tmp_path / "part.py", "Mine").__base__.__name__ == "Base"


def test_an_interrupt_of_the_import_is_one(capsys, tmp_path):
    (tmp_path / "part.py").write_text("raise KeyboardInterrupt")
    assert lab.main([f"{tmp_path}/part.py:Mine"]) == 130
    assert capsys.readouterr().err == ""
