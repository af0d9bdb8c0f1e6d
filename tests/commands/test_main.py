"""The one way to call a command, `rosecourse <command>`, and the flags that commands share."""

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rosecourse import __main__ as entry
from rosecourse.commands import engines, lab, options
from rosecourse.commands.benchmark import READERS
from rosecourse.lab.checking.models.appends import KVAppend
from rosecourse.lab.course import COURSES
from rosecourse.lessons import LESSONS, lesson
from rosecourse.lessons.dense import DecodeForward as DenseForward
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.measure import readers
from rosecourse.models import load
from tests.support.commands import ALL, benchmark_scheduler, generate

ROOT = Path(entry.__file__).parents[1]
COMMANDS = list(entry.COMMANDS.commands)


def test_main_calls_each_command_by_its_name(capsys):
    for name in COMMANDS:
        assert entry.main([name, "-h"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: rosecourse {name} ")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"rosecourse": "rosecourse.__main__:main"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "Missing command."),
        (["genrate"], "No such command 'genrate'. Did you mean 'generate'?"),
        (["options"], "No such command 'options'."),  # a module, but no command
        (["two\nlines"], r"No such command 'two\nlines'."),
    ],
)
def test_main_when_no_command_is_named_ends_in_one_line(argv, said, capsys):
    assert entry.main(argv) == 2
    assert capsys.readouterr() == ("", f"rosecourse: error: {said} (see --help)\n")


def test_main_hands_the_exit_code_on(monkeypatch):
    monkeypatch.setattr(entry.COMMANDS.commands["doctor"], "callback", lambda: 130)
    monkeypatch.setattr(sys, "argv", ["rosecourse", "doctor"])
    assert entry.main(["doctor"]) == entry.main() == 130


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
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CALL_ALL], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"{[True] * len(EARLY)} []"
    assert done.stderr.count("\n") == len(EARLY) - len(COMMANDS)


# -- flags ----------------------------------------------------------------------------------------------------------


def choices(command, flag):
    (param,) = [one for one in ALL[command].command.params if flag in one.opts]
    return tuple(param.type.choices)


def test_choices_are_those_of_the_modules_that_they_name():
    """They are known where torch is not imported."""
    assert choices("generate", "--dtype") == tuple(load.DTYPES)
    assert choices("generate", "--random-weights") == tuple(load.RANDOM_SHAPES)
    assert tuple(readers.READERS) == READERS
    assert [rung.number for rung in LESSONS] == list(options.LESSONS)
    assert set(choices("lab", "--lesson")) == set(COURSES)
    gathered = [rung.number for rung in LESSONS if rung.after.cache is KVBlockManager]
    assert gathered == [rung.number for rung in LESSONS if rung.number <= options.LAST_DENSE]
    assert COURSES[lab.DEFAULT_LESSON].world is KVAppend
    assert not lesson(lab.DEFAULT_LESSON).kernels


@pytest.mark.parametrize("name", ["generate", "benchmark_transformers", "benchmark_scheduler", "benchmark_streaming"])
@pytest.mark.parametrize("words", ["", "--paged-attn", "--dense", "--paged-attn --dense", "--dense --paged-attn"])
def test_attention_is_dense_when_the_last_flag_asks_for_it(name, words):
    prompt = ["--prompt", "x"] if name == "generate" else []
    forward = engines.parts_of(ALL[name].flags(*prompt, "--lesson", "061", *words.split())).forward
    assert forward is (DenseForward if words.endswith("--dense") else lesson("061").after.forward)
    assert engines.parts_of(ALL[name].flags(*prompt)) == LESSONS[-1].after


def test_command_line_leaves_out_what_is_the_default():
    flags = ["--num-requests", "3", "--no-stop-on-eos", "--lesson", "061", "--dense"]
    assert shlex.split(benchmark_scheduler.command_line(*flags)) == ["rosecourse", "benchmark_scheduler", *flags]
    assert (
        generate.command_line("--prompt", "It's", "--json", "x.json") == """rosecourse generate --prompt 'It'"'"'s'"""
    )
