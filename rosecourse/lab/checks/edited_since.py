"""Is the class that is checked the one that its author sees? A cell may have failed, or a file may have changed since.

A cell with a syntax error defines nothing, and a module that was imported stays as it was: the class of before is there
under the same name, and would be judged without a word.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from .own_work import MADE_OF_A_TEXT


def edited_since(part: type) -> tuple[str, ...]:
    """A remark if the newest text of a class is not the one that has been run; none if it is, or if nobody can tell."""
    module = sys.modules.get(part.__module__)
    cells = getattr(module, "In", None)  # of IPython, in the order in which they were run
    file = getattr(module, "__file__", None)
    if cells:
        begins = re.compile(rf"^\s*class {re.escape(part.__name__)}\b", re.MULTILINE)
        newest = max((n for n, cell in enumerate(cells) if begins.search(cell)), default=None)
        if newest is not None and not _is_of(part, cells[newest]):
            return (f"the class that was checked is older than the cell In [{newest}], which did not run to its end",)
    elif file and _is_from(part, file) and not _is_of(part, _text(Path(file))):
        return (f"the class that was checked is older than {Path(file).name}: restart, and import it again",)
    return ()


def _text(file: Path) -> str:
    """Empty for a file that is not there any more."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def _is_of(part: type, text: str) -> bool:
    """Whether every function of a class comes from this text."""
    try:
        tree = ast.parse(text)
        alone = [ast.Module([node], []) for node in tree.body]  # IPython compiles each statement by itself
        compiled = [
            compile(each, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | future, dont_inherit=True)
            for each in (tree, *alone)
            for future in (0, annotations.compiler_flag)  # an earlier cell may have asked for it
        ]
    except (SyntaxError, ValueError):
        return False
    return {_shape(code) for code in _written_in(part)} <= {_shape(code) for each in compiled for code in _codes(each)}


def _is_from(part: type, file: str) -> bool:
    """Whether the functions of a class were read from this file: a text that has been run by `exec` has none."""
    return all(code.co_filename == file for code in _written_in(part))


def _written_in(part: type) -> Iterator[CodeType]:
    """The functions of a class that somebody has written in it, and not those of a dataclass, for instance."""
    codes = [value.__code__ for value in vars(part).values() if isinstance(value, FunctionType)]
    for code in codes:
        if code.co_qualname.startswith(f"{part.__qualname__}.") and code.co_filename != MADE_OF_A_TEXT:
            yield code


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A piece of code and all those within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _shape(code: CodeType) -> Any:
    """What stays the same while other lines of the text come and go."""
    constants = tuple(_shape(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return code.co_qualname, code.co_code, code.co_names, code.co_varnames, constants
