"""Files of a model's folder: opened only where that is safe, and never read beyond a limit."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from ..checks import one_line
from ..errors import ModelError

ANEW = "get the folder anew, or write it with `save_pretrained` of transformers"
MIB = 2**20
MOST_JSON = 4 * MIB  # bytes: a config is of 1 KB, the index of a model of 405 billion weights of 100 KB
MOST_TOKENIZER = 64 * MIB  # bytes: that of a vocabulary of 262,144 tokens is of 33 MB
MOST_HEADER = 4 * MIB  # bytes: safetensors takes 100 for each tensor, and large models have a few thousand of them


def unreadable(what: str, error: Exception) -> ModelError:
    """The error for a file or model that another library cannot read, with at most 200 characters of its reason."""
    return refused(what, one_line(error)[:200])


def refused(what: str, why: str) -> ModelError:
    """The error for a file or model that is not read."""
    return ModelError(f"{what} cannot be read: {why}; {ANEW}")


def is_there(path: Path) -> bool:
    """Whether there is something of this name, be it a broken link."""
    return os.path.lexists(path)


def require_safe(path: Path) -> None:
    """Raise `ModelError` unless this is a regular file of its folder's. Nothing is opened: a FIFO would wait.

    A link may lead to another file in the folder, or in a hub's cache from `models--X/snapshots/<revision>` to
    `models--X/blobs`; any other could show whoever names the folder a file that is not the model's.
    """
    shown = repr(str(path))
    try:
        folder, target = path.parent.resolve(), path.resolve(strict=True)
        is_regular = stat.S_ISREG(target.stat().st_mode)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise unreadable(shown, error) from error
    if not any(target.is_relative_to(home) for home in _homes(folder)):
        raise refused(shown, "it is a link that leaves the folder")
    if not is_regular:
        raise refused(shown, "it is no regular file")


def _homes(folder: Path) -> list[Path]:
    """The folders in which the files of a model's folder may be."""
    repository = folder.parents[1] if len(folder.parents) > 1 else folder
    in_a_cache = repository.name.startswith("models--") and folder.parent.name == "snapshots"
    return [folder, repository / "blobs"] if in_a_cache else [folder]


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most so many bytes. Raises `ModelError`."""
    require_safe(path)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            is_regular = stat.S_ISREG(found.st_mode)  # still: it may have been replaced
            content = file.read(found.st_size) if is_regular and found.st_size <= most else b""
    except OSError as error:
        raise unreadable(repr(str(path)), error) from error
    if not is_regular:
        raise refused(repr(str(path)), "it is no regular file")
    if found.st_size > most:
        raise refused(repr(str(path)), f"it has {found.st_size:,} bytes, {path.name} may have {most:,}")
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The object in a JSON file of at most so many bytes. Raises `ModelError`."""
    try:
        content = json.loads(read_bytes(path, most))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, no object")
    except (ValueError, RecursionError) as error:
        raise unreadable(repr(str(path)), error) from error
    return content
