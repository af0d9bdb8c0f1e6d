"""The one way to call a command: `rosecourse <command>`, or `python -m rosecourse <command>`."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rosecourse import __main__ as entry

ROOT = Path(entry.__file__).parents[1]
COMMANDS = list(entry.COMMANDS.commands)


def in_a_process(folder, *argv, python=("-m", "rosecourse")):
    """What `python -m rosecourse ...` does in a folder, of the package that is tested."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *python, *argv], cwd=folder, env=env, capture_output=True, text=True)


def test_the_usage_names_every_command(capsys):
    assert entry.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Usage: rosecourse [OPTIONS] COMMAND [ARGS]..."
    named = dict(line.split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 :])
    assert list(named) == sorted(COMMANDS)
    assert not any(said.endswith("...") for said in named.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_called_by_its_name(name, capsys):
    for flag in ("-h", "--help"):
        assert entry.main([name, flag]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(f"Usage: rosecourse {name} ")
        assert captured.err == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "Missing command."),
        ([""], "No such command ''."),
        (["Generate"], "No such command 'Generate'. Did you mean 'generate'?"),
        (["genrate"], "No such command 'genrate'. Did you mean 'generate'?"),
        (["options"], "No such command 'options'."),  # a module, but no command
        (["--nonsense"], "No such option '--nonsense'."),
        (["two\nlines"], r"No such command 'two\nlines'."),
    ],
)
def test_without_a_command_that_is_there_it_ends_in_one_line(argv, said, capsys):
    assert entry.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"rosecourse: error: {said} (see --help)\n"


def test_the_exit_code_is_handed_on(monkeypatch):
    monkeypatch.setattr(entry.COMMANDS.commands["doctor"], "callback", lambda: 130)
    monkeypatch.setattr(sys, "argv", ["rosecourse", "doctor"])
    assert entry.main(["doctor"]) == entry.main() == 130


def test_it_generates_in_another_folder(tmp_path):
    done = in_a_process(tmp_path, "generate", "--prompt", "My dear", "--max-new-tokens", "3", "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("My dear")
    assert list(tmp_path.iterdir()) == []


HEAVY = ("torch", "triton", "transformers", "numpy", "pandas", "matplotlib", "tqdm")
EARLY = [
    *(([name, "--help"], 0) for name in COMMANDS),
    *(([name, "--nonsense"], 2) for name in COMMANDS),
    (["generate", "--prompt", "x", "--lesson", "37"], 2),
    (["lab", "x.py:A", "--lesson", "035"], 2),
    (["generate", "--prompt", "x", "--json", "/"], 2),
    (["benchmark_scheduler", "--dense"], 2),
    (["benchmark_scheduler", "--hf-model-id", "x", "--random-weights", "gpt2"], 2),
]
CALL_ALL = f"""
import sys
from rosecourse.__main__ import main
print([main(argv) == code for argv, code in {EARLY}], [name for name in {HEAVY} if name in sys.modules])
"""


def test_neither_help_nor_a_bad_flag_waits_for_torch(tmp_path):
    done = in_a_process(tmp_path, python=("-c", CALL_ALL))
    assert done.stdout.splitlines()[-1] == f"{[True] * len(EARLY)} []"
    assert done.stderr.count("\n") == len(EARLY) - len(COMMANDS)


def test_the_console_script_is_this_main():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"rosecourse": "rosecourse.__main__:main"}
