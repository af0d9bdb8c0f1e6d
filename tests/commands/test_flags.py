"""The flags that commands share: what they are parsed to, and that their choices are those of the engine."""

import shlex

import pytest

from rosecourse.commands import lab, options
from rosecourse.commands.benchmark import READERS
from rosecourse.lab.checking.models.appends import KVAppend
from rosecourse.lab.course import COURSES
from rosecourse.lessons import LESSONS, lesson
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.measure import readers
from rosecourse.models import load
from tests.support.commands import ALL, benchmark_scheduler, generate


def choices(command, flag):
    """Those of a flag."""
    (param,) = [one for one in ALL[command].command.params if flag in one.opts]
    return tuple(param.type.choices)


def test_the_choices_are_those_of_the_rooms_below():
    assert choices("generate", "--dtype") == tuple(load.DTYPES)
    assert choices("generate", "--random-weights") == tuple(load.RANDOM_SHAPES)
    assert tuple(readers.READERS) == READERS


def test_the_lessons_are_those_of_the_ladder():
    """Their numbers are known where torch is not imported."""
    assert [rung.number for rung in LESSONS] == list(options.LESSONS)
    assert set(choices("lab", "--lesson")) == set(COURSES)
    gathered = [rung.number for rung in LESSONS if rung.after.cache is KVBlockManager]
    assert gathered == [rung.number for rung in LESSONS if rung.number <= options.LAST_DENSE]
    assert lesson("best").number == options.LESSONS[-1]


def test_the_lab_takes_a_kv_append_without_kernels_unless_told_otherwise():
    assert COURSES[lab.DEFAULT_LESSON].world is KVAppend
    assert not lesson(lab.DEFAULT_LESSON).kernels


@pytest.mark.parametrize(
    ("argv", "dense"),
    [
        ([], False),
        (["--paged-attn"], False),
        (["--dense"], True),
        (["--paged-attn", "--dense"], True),  # the last one counts
        (["--dense", "--paged-attn"], False),
    ],
)
def test_attention(argv, dense):
    assert benchmark_scheduler.flags("--lesson", "061", *argv).dense is dense


@pytest.mark.parametrize(
    "argv",
    [
        ["generate", "--prompt", "It's you", "--seed", "3"],
        ["benchmark_scheduler", "--num-requests", "3", "--no-stop-on-eos", "--lesson", "061", "--dense"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_line_leaves_out_what_is_the_default(argv):
    name, *flags = argv
    words = ALL[name].command_line(*flags)
    assert shlex.split(words) == ["rosecourse", *argv]


def test_a_command_line_leaves_out_where_its_results_go():
    assert generate.command_line("--prompt", "x", "--json", "x.json") == "rosecourse generate --prompt x"
