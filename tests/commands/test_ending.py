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
from tests.support.commands import generate

ROOT = Path(entry.__file__).parents[1]
HELLO = ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "2"]


class Mute(Exception):
    def __str__(self):
        raise GeneratorExit

    __repr__ = __str__


class MuteRefusal(Mute, ConfigError):
    pass


def raising(error):
    def work():
        print("said before", end="")
        raise error

    return work


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
def test_what_ends_a_command_is_a_code_and_a_line_at_most(capsys, error, code, line):
    """Hazard 40: an exception that cannot even say what it is ends it in one line too."""
    assert ending.ended("x", raising(error)) == code
    assert capsys.readouterr() == ("said before", line)


def test_what_work_returns_is_the_code_and_our_own_faults_come_out():
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


WRITERS = {
    "help": lambda: entry.main(["--help"]),
    "generate": lambda: generate.main(HELLO),
}
OUTPUTS = [
    (gone, 141, ""),
    pytest.param(
        full, 2, "No space left on device\n", marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="")
    ),
]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(("output", "code", "end"), OUTPUTS, ids=["nobody reads", "full"])
def test_an_output_that_takes_nothing(monkeypatch, capsys, write, output, code, end):
    """Hazard 40: `--help | head -1` and `--help > /dev/full`."""
    with output() as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert write() == code
        print("more", flush=True)  # goes nowhere now: Python writes again when it ends
    error = capsys.readouterr().err
    assert error.endswith(end)
    assert error.count("\n") == bool(end)


@pytest.mark.parametrize("output", [gone, full])
def test_an_error_that_nobody_can_be_told_keeps_its_code(monkeypatch, output):
    with output() as stream:
        monkeypatch.setattr("sys.stderr", stream)
        assert entry.main(["nonsense"]) == 2
        assert generate.main(["--nonsense"]) == 2
        print("more", file=sys.stderr, flush=True)


def test_closed_streams_come_from_nowhere_and_go_there(monkeypatch, capfd):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert entry.main(["nonsense"]) == 2
    assert entry.main(["--help"]) == 0
    assert generate.main([*HELLO, "--prompt", "-"]) == 2  # an empty prompt
    assert capfd.readouterr() == ("", "")


# -- input ----------------------------------------------------------------------------------------------------------


def write_only():
    return open(os.devnull, "w")


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        (lambda: None, "the prompt is empty"),
        (write_only, "the prompt cannot be read from standard input: not readable"),
        (
            lambda: io.StringIO("Hello world! " * 2_000_000),
            "the prompt has 26000000 characters, at least 1733334 tokens",
        ),
    ],
)
def test_an_odd_standard_input(monkeypatch, capsys, stdin, says):
    """Hazard 40: closed, not readable, or far too long."""
    monkeypatch.setattr("sys.stdin", stdin())
    assert generate.main([*HELLO, "--prompt", "-"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"rosecourse generate: error: {says}")
    assert err.count("\n") == 1


# -- interrupts -----------------------------------------------------------------------------------------------------


def test_while_a_module_is_imported_late_an_interrupt_leaves(monkeypatch):
    """Hazard 40: in an import a library may turn it into another error."""
    seen = []
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(late, "import_module", lambda name: seen.append(signal.getsignal(signal.SIGINT)) or sys)
    assert late.Late("torch").maxsize == sys.maxsize
    assert seen == [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_check_of_doctor_is_not_interrupted_into_a_finding(monkeypatch):
    seen = []
    monkeypatch.setattr(doctor, "CHECKS", {"x": lambda: seen.append(signal.getsignal(signal.SIGINT))})
    entry.main(["doctor"])
    assert seen == [signal.SIG_DFL]


def test_a_handler_that_others_have_set_stays(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending.interrupts_leave():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_no_handler_is_set():
    with ThreadPoolExecutor() as pool, pool.submit(ending.interrupts_leave).result():
        pass


# -- as processes ---------------------------------------------------------------------------------------------------

IN_AN_IMPORT = """
import signal, sys
from rosecourse import __main__ as entry
from rosecourse.commands import late
def import_module(*_):
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        raise ImportError("cut short")  # as libraries do
late.import_module = import_module
sys.exit(entry.main(["generate", "--prompt", "x"]))
"""


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("$PYTHON -c '$IN_AN_IMPORT'; exit $?", 130),
        ("$PYTHON -m rosecourse --help > /dev/full", 2),
        ("$PYTHON -m rosecourse doctor --help | true; exit ${PIPESTATUS[0]}", 141),
        ("$PYTHON -m rosecourse nonsense 2> /dev/full", 2),
        ("$PYTHON -m rosecourse doctor --nonsense <&- >&- 2>&-", 2),
    ],
)
def test_as_a_shell_sees_it(tmp_path, shell, code):
    """None of these imports torch."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "IN_AN_IMPORT": IN_AN_IMPORT}
    command = shell.replace("'$IN_AN_IMPORT'", '"$IN_AN_IMPORT"')
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == (1 if "full" in shell and code == 2 and "2>" not in shell else 0)
