"""A sealed file: one JSON object that carries its own checksum, and is read whole or refused.

`sha256` is the checksum of `canonical_bytes` of all the rest, `format` the number of the file's form, and `workload`
the name of the workload that it is about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..errors import RosecourseError

Parsed = TypeVar("Parsed")
KEPT = 16  # files whose contents stay in memory: a table of all lessons asks for the same few again and again


def canonical_bytes(document: dict[str, Any]) -> bytes:
    """A document without its checksum as bytes that do not depend on the order of keys or on spaces."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def seal(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its checksum."""
    return document | {"sha256": hashlib.sha256(canonical_bytes(document)).hexdigest()}


def read_sealed(
    path: Path, what: str, workload: str, form: int, remedy: str, parse: Callable[[dict[str, Any]], Parsed]
) -> Parsed:
    """What `parse` makes of a file's document; `parse` raises `ValueError` for a document that it does not accept.

    what: what the error calls the file, such as `recorded`; remedy: the command that makes it anew. The same contents
    give the same object again, so change nothing in it. Raises `RosecourseError` for a file that is damaged, of another
    workload or of another format than `form`.
    """
    try:
        return _unsealed(path.read_text(encoding="utf-8"), workload, form, parse)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        ways = f"restore it from git, or record it anew with `{remedy}`"
        raise RosecourseError(f"the {what} file {path} cannot be used, {why}: {ways}") from error


@lru_cache(maxsize=KEPT)
def _unsealed(text: str, workload: str, form: int, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """What `parse` makes of the text of a file. Raises `ValueError` for one that is not accepted."""
    document = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(document, dict) or document.get("sha256") != seal(document)["sha256"]:
        raise ValueError("its checksum does not fit")
    if type(document.get("format")) is not int or document["format"] != form:
        raise ValueError(f"its format is {document.get('format')!r:.20}, not {form}")
    if document.get("workload") != workload:
        raise ValueError(f"it is of workload {document.get('workload')!r:.20}")
    return parse(document)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no number")


def require_form(value: Any, form: Any, where: str) -> None:
    """Raise `ValueError`, which names the place as `where`, unless the value has this form.

    form: a type, several of them, an object with at least these keys, or a list of one kind of item.
    """
    if isinstance(form, dict):
        require_form(value, dict, where)
        for key, inner in form.items():
            if key not in value:
                raise ValueError(f"{where} has no {key!r}")
            require_form(value[key], inner, key)
    elif isinstance(form, list):
        require_form(value, list, where)
        if form == [int] and set(map(type, value)) == {int} and max(map(abs, value)) < 2**63:
            return  # most of a file are long lists of these: not item by item
        item_of = f"an item of {where}"
        for item in value:
            require_form(item, form[0], item_of)
    elif type(value) not in (form if isinstance(form, tuple) else (form,)):  # a bool is no int here
        raise ValueError(f"{where} is of type {type(value).__name__}")
    elif type(value) is int and abs(value) >= 2**63:
        raise ValueError(f"{where} is a number of {len(str(abs(value)))} digits")
