"""The files of data/results/<gpu>/: where they lie, and whether they are whole and what they say they are.

Each is one JSON object that `rosecourse record` has written. `sha256` is the checksum of `canonical` of all
the rest, `format` the number of its form, and `lesson` the lesson that it is of.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..checks import require, shown
from ..config import DATA
from ..errors import ConfigError, RosecourseError

Found = TypeVar("Found")

RESULTS = DATA / "results"
SHIPPED_GPU = "nvidia-h200"  # the one whose recordings come with the course


# -- where they lie -----------------------------------------------------------------------------------------------


def slug(name: str) -> str:
    """A device's name as the name of a folder: `NVIDIA H200` is `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def gpus_with(name: str, folder: Path = RESULTS) -> list[str]:
    """The folders, one for each GPU, that have a file of this name, the course's own first."""
    require(isinstance(folder, (str, Path)) and "\0" not in str(folder), f"folder is {shown(folder)}: give a path")
    try:
        found = [path.parent.name for path in Path(folder).glob(f"*/{name}")]
    except OSError as error:
        raise ConfigError(f"folder {shown(folder)} cannot be read: {error.strerror}") from error
    return sorted(found, key=lambda gpu: (gpu != SHIPPED_GPU, gpu))


def find(name: str, gpu: str | None = None, folder: Path = RESULTS) -> Path | None:
    """The file of this name, or None where there is none.

    gpu: a name such as `NVIDIA H200`, or the folder's, `nvidia-h200`; None is the course's own, else the first found.
    """
    require(gpu is None or isinstance(gpu, str), f"gpu is {shown(gpu)}: give a name such as 'NVIDIA H200', or None")
    there = gpus_with(name, folder)
    chosen = slug(gpu) if gpu is not None else next(iter(there), None)
    return Path(folder) / chosen / name if chosen in there else None


# -- whole or refused ---------------------------------------------------------------------------------------------


def canonical(document: dict[str, Any]) -> bytes:
    """A document without its checksum as bytes that do not depend on the order of keys or on spaces."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its checksum."""
    return document | {"sha256": hashlib.sha256(canonical(document)).hexdigest()}


def read(path: Path, what: str, lesson: str, form: int, parse: Callable[[dict[str, Any]], Found]) -> Found:
    """What `parse` makes of a file's document; it raises `ValueError` for one that is not as it should be.

    Raises `RosecourseError`, which names the file as the recorded `what`, for one that is damaged, of another lesson
    or of another format than `form`.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        if not isinstance(document, dict) or document.get("sha256") != sealed(document)["sha256"]:
            raise ValueError("its checksum does not fit")
        if type(document.get("format")) is not int or document["format"] != form:
            raise ValueError(f"its format is {document.get('format')!r:.20}, not {form}")
        if document.get("lesson") != lesson:
            raise ValueError(f"it is of lesson {document.get('lesson')!r:.20}")
        return parse(document)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        remedy = f"restore it from git, or record it anew with `rosecourse record --lessons {lesson}`"
        raise RosecourseError(f"the {what} file {path} cannot be used, {why}: {remedy}") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no number")


def check(value: Any, spec: Any, where: str) -> None:
    """Raise `ValueError` unless the value is as the specification says; `where` names it.

    spec: a type, several of them, an object with at least these keys, or a list of one kind of item.
    """
    if isinstance(spec, dict):
        check(value, dict, where)
        for key, inner in spec.items():
            if key not in value:
                raise ValueError(f"{where} has no {key!r}")
            check(value[key], inner, key)
    elif isinstance(spec, list):
        check(value, list, where)
        for item in value:
            check(item, spec[0], f"an item of {where}")
    elif type(value) not in (spec if isinstance(spec, tuple) else (spec,)):  # a bool is no int here
        raise ValueError(f"{where} is of type {type(value).__name__}")
    elif type(value) is int and abs(value) >= 2**63:
        raise ValueError(f"{where} is a number of {len(str(abs(value)))} digits")
