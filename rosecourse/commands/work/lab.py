"""Check a part that is written in a file of its own, and race it."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from ...checks import one_line, told
from ...errors import ConfigError
from ...lab.checks.checking import check
from ...lab.exercises.racing import race
from ...models.load import load_model
from .building import require_threads, set_threads
from .guard import end_with, guarded

LONGEST_IMPORT = 60.0  # seconds: more than any import of a library takes
LONGEST_RACE = 900.0  # seconds: a race takes ten to thirty, and on a slow machine a few minutes


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


def run(args: argparse.Namespace) -> int:
    """Check, and race what is right; returns 0 if the check is passed, else 1."""
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
    return 0 if verdict.passed else 1
