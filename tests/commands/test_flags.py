"""The flags that commands share: what they are parsed to, and that their choices are those of the engine."""

import pytest

from rosecourse.commands import benchmark_scheduler, flags, lab, record
from rosecourse.commands.parser import command_parser
from rosecourse.commands.work import benchmark_scheduler as scheduling
from rosecourse.lab.course import COURSES
from rosecourse.lab.world.worlds import KV_APPEND
from rosecourse.lessons import LESSONS, workloads
from rosecourse.measure import readers
from rosecourse.models import load


def test_the_choices_are_those_of_the_rooms_below():
    assert tuple(load.DTYPES) == flags.DTYPES
    assert tuple(readers.READERS) == flags.READERS
    assert tuple(workloads.ARTICLES) == record.ARTICLES
    assert tuple(scheduling.RUNNERS) == benchmark_scheduler.MODES


def test_the_lessons_of_the_lab_are_those_with_a_course():
    numbers = {}
    for rung in LESSONS:
        if rung.number in COURSES:
            numbers.setdefault(COURSES[rung.number].world.words, []).append(rung.number)
    told = [f"{' or '.join(', '.join(known).rsplit(', ', 1))} for {part}" for part, known in numbers.items()]
    assert "; ".join(told) == lab.LESSONS_BY_PART
    appends = [rung for rung in LESSONS if rung.number in numbers[KV_APPEND.words] and not rung.kernels]
    assert appends[-1].number == lab.DEFAULT_LESSON


@pytest.fixture
def parser():
    parser = command_parser("x", "")
    flags.add_model_flags(parser)
    flags.add_engine_flags(parser)
    flags.add_workload_flags(parser)
    flags.add_json_flag(parser)
    return parser


@pytest.mark.parametrize(
    ("argv", "dense"), [([], False), (["--paged-attn"], False), (["--dense"], True), (["--dense", "--dense"], True)]
)
def test_attention(parser, argv, dense):
    assert parser.parse_args(argv).dense is dense


@pytest.mark.parametrize("argv", [["--paged-attn", "--dense"], ["--dense", "--pretok", "--paged-attn"]])
def test_both_attentions_are_refused_in_one_line(parser, argv, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"rosecourse x: error: argument {argv[-1]}: not allowed with argument {argv[0]} (see --help)\n"
    )


def test_a_command_line_leaves_out_what_is_the_default(parser):
    assert flags.command_line(parser, parser.parse_args(["--paged-attn", "--prompt", "Hello"])) == "rosecourse x"
    argv = ["--dense", "--prompt", "It's you", "--seed", "3"]
    words = flags.command_line(parser, parser.parse_args([*argv, "--json", "out.json"]))
    assert words.startswith("rosecourse x ")
    again = parser.parse_args(flags.shlex.split(words)[2:])
    assert flags.flags_of(again) == flags.flags_of(parser.parse_args(argv))


def test_help_says_which_attention_is_the_default(parser):
    text = " ".join(parser.format_help().split())
    assert "[--paged-attn | --dense]" in text
    assert "--paged-attn read K and V through block tables; this is the default" in text
