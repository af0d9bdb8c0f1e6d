"""The flags that commands share: what they are parsed to, and that their choices are those of the engine."""

import shlex

import pytest

from rosecourse.commands import lab, options
from rosecourse.commands.benchmark_streaming import READERS
from rosecourse.lab.course import COURSES
from rosecourse.lab.world.worlds import KV_APPEND
from rosecourse.lessons import LESSONS, lesson, workloads
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.measure import readers
from rosecourse.models import load
from rosecourse.records.names import firsts
from tests.support.commands import ALL, benchmark_ladder, benchmark_scheduler, generate, record


def choices(command, flag):
    """Those of a flag."""
    (param,) = [one for one in ALL[command].command.params if flag in one.opts]
    return tuple(param.type.choices)


def test_the_choices_are_those_of_the_rooms_below():
    assert choices("generate", "--dtype") == tuple(load.DTYPES)
    assert choices("generate", "--random-weights") == tuple(load.RANDOM_SHAPES)
    assert tuple(readers.READERS) == READERS
    assert tuple(workloads.ARTICLES) == options.ARTICLES


def test_the_lessons_are_those_of_the_ladder():
    """Their numbers are known where torch is not imported."""
    assert [rung.number for rung in LESSONS] == list(options.LESSONS)
    assert choices("record", "--from") == tuple(firsts())
    assert set(choices("lab", "--lesson")) == set(COURSES)
    gathered = [rung.number for rung in LESSONS if rung.after.cache is KVBlockManager]
    assert gathered == [rung.number for rung in LESSONS if rung.number <= options.LAST_DENSE]
    assert lesson("best").number == options.LESSONS[-1]


def test_the_lessons_of_the_lab_are_those_with_a_course():
    numbers = {}
    for rung in LESSONS:
        if rung.number in COURSES:
            numbers.setdefault(COURSES[rung.number].world.words, []).append(rung.number)
    told = [f"{' or '.join(', '.join(known).rsplit(', ', 1))} for {part}" for part, known in numbers.items()]
    assert "; ".join(told) == lab.LESSONS_BY_PART
    appends = [rung for rung in LESSONS if rung.number in numbers[KV_APPEND.words] and not rung.kernels]
    assert appends[-1].number == lab.DEFAULT_LESSON


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


def test_lists_are_tidied():
    assert benchmark_ladder.flags("--lessons", "061, 035,061").lessons == "061,035"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["generate", "My dear"], "Missing option '--prompt'."),
        (
            ["benchmark_ladder", "--lessons", "035-038"],
            "Invalid value for '--lessons': '035-038' is no list: give 035,036,038.",
        ),
        (
            ["benchmark_ladder", "--lesson", "037"],
            "No such option '--lesson'. (Did you mean one of: '--json', '--lessons'?)",
        ),
    ],
)
def test_a_slip_is_told_with_what_was_meant(argv, said, capsys):
    name, *flags = argv
    assert ALL[name].main(flags) == 2
    assert capsys.readouterr().err == f"rosecourse {name}: error: {said} (see --help)\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["generate", "--prompt", "It's you", "--seed", "3"],
        ["benchmark_scheduler", "--num-requests", "3", "--no-stop-on-eos", "--lesson", "061", "--dense"],
        ["record", "--workloads", "A", "--from", "061", "--device", "cpu"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_line_leaves_out_what_is_the_default(argv):
    name, *flags = argv
    words = ALL[name].command_line(*flags)
    assert shlex.split(words) == ["rosecourse", *argv]


def test_a_command_line_leaves_out_where_its_results_go():
    assert generate.command_line("--prompt", "x", "--json", "x.json") == "rosecourse generate --prompt x"
    assert record.command_line("--out", "x", "--force") == "rosecourse record"
