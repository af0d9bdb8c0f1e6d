"""rosecourse lab FILE.py:CLASS: check a part that is written in a file of its own, and race it."""

from __future__ import annotations

from pathlib import Path

import click

import rosecourse

from ..checks import require
from ..desk.places import repository
from ..desk.status import status_of
from ..errors import ConfigError
from .late import checking, engines, guard, part_file, racing
from .options import LESSONS, Flags, command, threads_option

LONGEST_RACE = 900.0  # seconds: a race takes ten to thirty, and on a slow machine a few minutes
LESSON = click.Choice(LESSONS[1:])  # those with a course, as in `lab.course`
DEFAULT_LESSON = "060"  # the last lesson about a KV append whose part launches no kernels: it is about Python alone
LESSONS_BY_PART = (
    "036 for block tables; 038, 059, 060 or 061 for a KV append; 062 for a KV append with one table for all layers; "
    "063 for a KV append by the block table; 064 for rows that stay; 065 for copies of blocks; "
    "066 for a runner of graphs; 067 for a pipeline of steps; 068 for a delivery; 069 for the operations of a layer; "
    "070 for the operations of a layer, with kernels; 071 for operations whose kernel may start early"
)


def file_and_class(context: click.Context, param: click.Parameter, text: str) -> tuple[Path, str]:
    file, _, name = text.rpartition(":")
    remedy = "give a file and a class, such as examples/my_kv_append.py:MyKVAppend"
    require(file != "" and name.isidentifier(), f"{text!r} names no class: {remedy}")
    require(Path(file).is_file(), f"{file!r} is no file: give one that is there")
    return Path(file), name


def show_status(context: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(status_of(repository(Path.cwd())))
        context.exit()


@command
@click.argument("part", metavar="FILE.py:CLASS", callback=file_and_class)
@click.option("--lesson", type=LESSON, default=DEFAULT_LESSON, metavar="NNN", help=f"What it is: {LESSONS_BY_PART}.")
@click.option("--no-race", is_flag=True, help="Check it, and time nothing.")
@click.option(
    *("--status", "status"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_status,
    help="Show how far you have come in the lessons, and end.",
)
@threads_option
def lab(flags: Flags) -> int:
    """Check a part that you have written, and race it.

    The exit code is 0 for a part that passes, 1 for one that does not.
    """
    part = part_file.load_part(*flags.part)
    verdict = checking.check(part, flags.lesson)
    print(verdict, flush=True)
    if not flags.no_race and verdict.correct:
        print(f"\nRacing against lesson {flags.lesson} ...", flush=True)
        model = rosecourse.load_model()
        engines.set_threads(flags.threads, model.shape)
        with guard.guarded(part.__name__, LONGEST_RACE, part_file.end_late):
            raced = racing.race(part, flags.lesson, model)
        if raced.trouble:  # a request failed, say: there are no figures
            raise ConfigError(raced.trouble)
        print(raced)
    return 0 if verdict.passed else 1
