"""rosecourse lab FILE.py:CLASS: check a part that is written in a file of its own, and race it."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..checks import one_line, told
from ..errors import ConfigError
from ..lab.checks.checking import check
from ..lab.course import COURSES
from ..lab.exercises.racing import race
from ..lab.world.worlds import KV_APPEND
from ..lessons import LESSONS
from ..models.load import load_model
from .building import require_threads, set_threads
from .desk import ShowStatus
from .flags import add_threads_flag
from .guard import end_with, guarded
from .parser import Parser, command_parser, run_command

LONGEST_IMPORT = 60.0  # seconds: more than any import of a library takes
LONGEST_RACE = 900.0  # seconds: a race takes ten to thirty, and on a slow machine a few minutes


def default_lesson() -> str:
    """The last lesson about a KV append whose part launches no kernels: it is about Python alone."""
    of_python = [rung.number for rung in LESSONS if rung.number in COURSES and not rung.kernels]
    return next(number for number in reversed(of_python) if COURSES[number].world is KV_APPEND)


def lessons_by_part() -> str:
    """The numbers of the lessons for each kind of part, such as "036 for block tables; 038 or 059 for a KV append"."""
    numbers: dict[str, list[str]] = {}
    for rung in LESSONS:
        if rung.number in COURSES:
            numbers.setdefault(COURSES[rung.number].world.words, []).append(rung.number)
    return "; ".join(f"{_one_of(known)} for {part}" for part, known in numbers.items())


def _one_of(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def make_parser() -> Parser:
    parser = command_parser(
        "lab", "Check a part of the decode step that you have written, and race it against the course's."
    )
    parser.add_argument("part", metavar="FILE.py:CLASS", help="a Python file, and the class in it that is the part")
    parser.add_argument(
        "--lesson",
        default=default_lesson(),
        metavar="NNN",
        help=f"what it is to be, and is raced against: {lessons_by_part()}",
    )
    parser.add_argument("--no-race", action="store_true", help="check it, and time nothing")
    parser.add_argument("--status", action=ShowStatus, help="show how far you have come in the lessons, and end")
    add_threads_flag(parser)
    return parser


def load_part(text: str) -> type:
    """The class that FILE.py:CLASS names. Runs the file; raises `ConfigError` for what cannot be loaded."""
    file, colon, name = text.rpartition(":")
    if not (colon and file and name.isidentifier()):
        raise ConfigError(
            f"{text!r} names no class: give a file and a class, such as examples/my_kv_append.py:MyKVAppend"
        )
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{file!r} is no file: give one that is there")
    with guarded(path.name, LONGEST_IMPORT, end_late):
        part = _in_module(path, name)
    if not isinstance(part, type):
        raise ConfigError(f"{file} has no class {name!r}" if part is None else f"{name!r} in {file} is not a class")
    return part


def end_late(message: str) -> NoReturn:
    """End the command because of a learner's code that does not."""
    end_with(f"rosecourse lab: error: {message}")


def _in_module(path: Path, name: str) -> object:
    """What a name is in a file that is run as a module, as `python FILE` would: its own folder comes first in the path.

    None where the file has no such name. Raises `ConfigError` for whatever comes out of the file but an interrupt.
    """
    own = f"part_of_{path.stem}"
    loader = importlib.machinery.SourceFileLoader(own, str(path.resolve()))
    spec = importlib.util.spec_from_loader(own, loader)
    if spec is None:
        raise ConfigError(f"{path.name} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module  # dataclasses and Triton look there
    known = sys.path
    sys.path = [str(path.resolve().parent), *known]
    try:
        loader.exec_module(module)
        return getattr(module, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(_what_came_out(error, path)) from None
    finally:
        sys.path = known


def _what_came_out(error: BaseException, path: Path) -> str:
    """What a learner's file raised, and where, on one line."""
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        where = f", line {error.lineno}" if error.lineno else ""
        return f"{Path(error.filename).name}{where}: {type(error).__name__}: {one_line(error.msg)}"
    theirs = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path.resolve())]
    where = f", line {theirs[-1].lineno}" if theirs else ""
    return f"{path.name}{where}: {told(error)}"


def lab(args: argparse.Namespace) -> bool:
    """Check, and race what is right; returns whether the check is passed."""
    require_threads(args.threads)
    part = load_part(args.part)
    verdict = check(part, args.lesson)
    print(verdict, flush=True)
    if not args.no_race and verdict.correct:
        print(f"\nRacing against lesson {args.lesson} ...", flush=True)
        model = load_model()
        set_threads(args.threads, model.shape)
        with guarded(part.__name__, LONGEST_RACE, end_late):
            raced = race(part, args.lesson, model)
        if raced.trouble:  # a request failed, say: there are no figures
            raise ConfigError(raced.trouble)
        print(raced)
    return verdict.passed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 for a part that passes, 1 for one that does not, 2 for bad input."""
    passed: list[bool] = []
    code = run_command(make_parser(), lambda args: passed.append(lab(args)), argv)
    return code or int(passed == [False])
