"""The one way to call a command: `rosecourse <command>`, or `python -m rosecourse <command>`."""

import os
import pkgutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from rosecourse import __main__ as entry
from rosecourse import commands

ROOT = Path(entry.__file__).parents[1]
MODULES = {
    module.name: import_module(f"rosecourse.commands.{module.name}")
    for module in pkgutil.iter_modules(commands.__path__)
}


def in_a_process(folder, *argv, python=("-m", "rosecourse")):
    """What `python -m rosecourse ...` does in a folder, of the package that is tested."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *python, *argv], cwd=folder, env=env, capture_output=True, text=True)


def test_every_module_with_a_main_is_a_command_that_the_usage_names(capsys):
    assert sorted(entry.COMMANDS) == sorted(name for name, module in MODULES.items() if hasattr(module, "main"))
    assert entry.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: rosecourse <command> [flags]"
    named = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert named == entry.COMMANDS
    assert lines[-1] == "Each command has --help."


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_each_command_is_called_by_its_name(name, capsys, monkeypatch):
    assert MODULES[name].__doc__.startswith(f"rosecourse {name}")
    monkeypatch.setenv("COLUMNS", "200")
    assert entry.main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: rosecourse {name} ")
    assert captured.err == ""


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_asked_for_in_two_ways(flag, capsys):
    assert entry.main([flag]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (entry.usage() + "\n", "")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no command is given"),
        ([""], "no command is given"),
        (["benchmark"], "there is no command 'benchmark'"),
        (["Generate"], "there is no command 'Generate'"),
        (["flags"], "there is no command 'flags'"),  # a module, but no command
        (["--nonsense"], "there is no command '--nonsense'"),
        (["two\nlines"], r"there is no command 'two\nlines'"),
        (["x" * 500], f"there is no command '{'x' * 59}"),
    ],
)
def test_without_a_command_that_is_there_it_ends_in_one_line(argv, said, capsys):
    assert entry.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"rosecourse: error: {said}: give one of {', '.join(entry.COMMANDS)} (see --help)\n"


@pytest.mark.parametrize("name", entry.COMMANDS)
@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_flags_and_exit_code_are_handed_on(name, code, monkeypatch):
    given = []

    def main(flags):
        given.append(flags)
        return code

    monkeypatch.setattr(MODULES[name], "main", main)
    assert entry.main([name, "--a-flag", "--help", name]) == code
    monkeypatch.setattr(sys, "argv", ["rosecourse", name, "1"])
    assert entry.main() == code
    assert given == [["--a-flag", "--help", name], ["1"]]


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        ([], 2, "rosecourse: error: no command is given: give one of lab, "),
        (["nonsense"], 2, "rosecourse: error: there is no command 'nonsense': give one of lab, "),
        (["--help"], 0, ""),
        (["generate"], 2, "rosecourse generate: error: the following arguments are required: --prompt (see --help)\n"),
        (
            ["generate", "--promt", "x"],
            2,
            "rosecourse generate: error: unrecognized arguments: --promt x (see --help)\n",
        ),
        (["doctor", "--help"], 0, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_as_a_process_in_another_folder(tmp_path, argv, code, error):
    done = in_a_process(tmp_path, *argv)
    assert done.returncode == code
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == bool(error)
    assert bool(done.stdout) == (code == 0)


def test_it_generates_in_another_folder(tmp_path):
    done = in_a_process(tmp_path, "generate", "--prompt", "My dear", "--max-new-tokens", "3", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("My dear")
    assert list(tmp_path.iterdir()) == []


HEAVY = ("torch", "triton", "transformers", "numpy", "pandas", "matplotlib", "tqdm")
HELP_OF_ALL = f"""
import sys
from rosecourse.__main__ import COMMANDS, main
ends = [(main([name, "--help"]), main([name, "--nonsense"])) for name in COMMANDS]
print(set(ends), [name for name in {HEAVY} if name in sys.modules])
"""


def test_neither_help_nor_a_bad_flag_waits_for_torch(tmp_path):
    done = in_a_process(tmp_path, python=("-c", HELP_OF_ALL))
    assert done.stdout.count("\nusage: rosecourse ") == len(entry.COMMANDS) - 1
    assert done.stdout.splitlines()[-1] == "{(0, 2)} []"
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [f"rosecourse {n}" for n in entry.COMMANDS]


def test_the_console_script_is_this_main():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"rosecourse": "rosecourse.__main__:main"}
