"""rosecourse lab FILE.py:CLASS: check a part that is written in a file of its own, and measure it."""

from __future__ import annotations

from pathlib import Path

import click

import rosecourse

from ..checks import require
from .late import checking, engines, own_run, part_file
from .options import LESSONS, Flags, command, threads_option

LESSON = click.Choice([*LESSONS[1:], "073", "074"])  # those with a course, as in `lab.course`
DEFAULT_LESSON = "060"  # the last lesson about a KV append whose part launches no kernels: it is about Python alone


def file_and_class(context: click.Context, param: click.Parameter, text: str) -> tuple[Path, str]:
    file, _, name = text.rpartition(":")
    remedy = "give a file and a class, such as examples/my_kv_append.py:MyKVAppend"
    require(file != "" and name.isidentifier(), f"{text!r} names no class: {remedy}")
    require(Path(file).is_file(), f"{file!r} is no file: give one that is there")
    return Path(file), name


@command
@click.argument("part", metavar="FILE.py:CLASS", callback=file_and_class)
@click.option("--lesson", type=LESSON, default=DEFAULT_LESSON, metavar="NNN", help="The lesson that asks for the part.")
@click.option("--no-run", is_flag=True, help="Check it, and measure nothing.")
@threads_option
def lab(flags: Flags) -> int:
    """Check a part that you have written, and run it.

    The exit code is 0 for a part that passes, 1 for one that does not.
    """
    part = part_file.load_part(*flags.part)
    verdict = checking.check(part, flags.lesson)
    print(verdict, flush=True)
    if not flags.no_run and verdict.correct:
        print(f"\nMeasuring lesson {flags.lesson} ...", flush=True)
        model = rosecourse.load_model()
        engines.set_threads(flags.threads, model.shape)
        own_run.your_run(part, flags.lesson, model)
    return 0 if verdict.passed else 1
