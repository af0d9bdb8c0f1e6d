"""A part that is written in a file of its own: `FILE.py:CLASS`, or kept in `my/parts/` since it has passed."""

import ast
import importlib.machinery
import importlib.util
import inspect
import linecache
import sys
import traceback
from pathlib import Path

from ...checks import one_line, require, told
from ...desk.notebooks import DESK, desk_here
from ...errors import ConfigError
from ...records.files import write_whole
from ..checks.verdict import PASSED

PARTS = "parts"


def keep_part(part: type, number: str) -> None:
    """Store the cell or the file of a part that has passed, if this process works in the learner's folder."""
    folder, text = desk_here(), text_of(part)
    if folder is not None and number in PASSED and text:
        (folder / PARTS).mkdir(exist_ok=True)
        write_whole(folder / PARTS / f"l{number}.py", text.encode())


def text_of(part: type) -> str:
    """The cell or the file in which a class stands."""
    files = [one.__code__.co_filename for one in vars(part).values() if inspect.isfunction(one)]
    return "".join(linecache.getlines(files[0])) if files else ""


def kept_part(number: str) -> type:
    """The learner's part of a lesson, as it was measured last. Raises `ConfigError` where none is kept."""
    path = (desk_here() or Path()) / PARTS / f"l{number}.py"
    remedy = f"let it pass its check and run it in {DESK}/, your copy of the notebooks"
    require(path.is_file(), f"no part of yours is kept for lesson {number}: {remedy}")
    classes = [one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)]
    return load_part(path, classes[-1])


def load_part(path: Path, name: str) -> type:
    """The class of this name in a file. Runs the file; raises `ConfigError` for what cannot be loaded."""
    part = _in_module(path, name)
    require(part is not None, f"{path} has no class {name!r}")
    if not isinstance(part, type):
        raise ConfigError(f"{name!r} in {path} is not a class")
    return part


def _in_module(path: Path, name: str) -> object:
    """What a name is in a file that is run as a module, as `python FILE` would: its own folder comes first in the path.

    None where the file has no such name. Raises `ConfigError` for whatever comes out of the file but an interrupt.
    """
    own = f"part_of_{path.stem}"
    loader = importlib.machinery.SourceFileLoader(own, str(path.resolve()))  # whatever the file's name ends in
    spec = importlib.machinery.ModuleSpec(own, loader, origin=loader.path)
    spec.has_location = True
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
