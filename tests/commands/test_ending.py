"""How commands end: an exit code and at most one line, whatever becomes of the standard streams, never a traceback."""

import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rosecourse import ConfigError
from rosecourse import __main__ as entry
from rosecourse.commands import doctor, ending, late

ROOT = Path(entry.__file__).parents[1]
HELLO = ["generate", "--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "2"]


class MuteRefusal(ConfigError):
    def __str__(self):
        raise GeneratorExit

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (ConfigError("two\nlines"), 2, "x: error: two lines\n"),
        (OSError(28, "No space left on device"), 2, "x: error: [Errno 28] No space left on device\n"),
        (MemoryError(), 2, "x: error: MemoryError\n"),
        (MuteRefusal(), 2, "x: error: MuteRefusal\n"),
    ],
)
def test_error_ends_a_command_with_a_code_and_a_line_at_most(capsys, error, code, line):
    """Hazard 40: an exception that cannot even say what it is ends it in one line too."""

    def work():
        print("said before", end="")
        raise error

    assert ending.ended("x", work) == code
    assert capsys.readouterr() == ("said before", line)


def test_code_is_what_the_work_returns_and_our_faults_come_out():
    assert [ending.ended("x", lambda result=result: result) for result in (None, 0, 1, True)] == [0, 0, 1, 1]
    with pytest.raises(ZeroDivisionError):
        ending.ended("x", lambda: 1 // 0)


# -- output ---------------------------------------------------------------------------------------------------------


def gone():
    """A pipe that nobody reads, as a stream that writes at once."""
    reads, writes = os.pipe()
    os.close(reads)
    return io.TextIOWrapper(os.fdopen(writes, "wb", buffering=0), write_through=True)


def full():
    return open("/dev/full", "w")


@pytest.mark.parametrize("argv", [["--help"], HELLO], ids=["help", "generate"])
@pytest.mark.parametrize(("output", "code", "end"), [(gone, 141, ""), (full, 2, "No space left on device\n")])
def test_output_when_it_takes_nothing_ends_the_command(monkeypatch, capsys, argv, output, code, end):
    """Hazard 40: `--help | head -1` and `--help > /dev/full`."""
    with output() as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert entry.main(argv) == code
        print("more", flush=True)  # goes nowhere now: Python writes again when it ends
    error = capsys.readouterr().err
    assert error.endswith(end)
    assert error.count("\n") == bool(end)


# -- interrupts -----------------------------------------------------------------------------------------------------


def test_interrupt_in_a_late_import_or_a_check_of_doctor_leaves(monkeypatch):
    """Hazard 40: a library may turn it into another error, and doctor into a finding."""
    seen = []
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(late, "import_module", lambda name: seen.append(signal.getsignal(signal.SIGINT)) or sys)
    monkeypatch.setattr(doctor, "CHECKS", {"x": lambda: seen.append(signal.getsignal(signal.SIGINT))})
    assert late.Late("torch").maxsize == sys.maxsize
    entry.main(["doctor"])
    assert seen == [signal.SIG_DFL] * 2
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_handler_of_others_or_of_another_thread_stays(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending.interrupts_leave():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with ThreadPoolExecutor() as pool, pool.submit(ending.interrupts_leave).result():
        pass


# -- as processes, none of which imports torch ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "code", "lines"),
    [
        ("$PYTHON -m rosecourse --help > /dev/full", 2, 1),
        ("$PYTHON -m rosecourse doctor --help | true; exit ${PIPESTATUS[0]}", 141, 0),
        ("$PYTHON -m rosecourse nonsense 2> /dev/full", 2, 0),
        ("$PYTHON -m rosecourse doctor --nonsense <&- >&- 2>&-", 2, 0),
    ],
)
def test_shell_sees_the_code_and_no_traceback(tmp_path, shell, code, lines):
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", lines)
    assert "Traceback" not in done.stderr
