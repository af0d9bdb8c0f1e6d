"""Writing a JSON file: whole or not at all, and only after asking whether it can be written."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from secrets import token_hex
from typing import Any

from ..checks import require
from ..errors import ConfigError


def require_writable_json(path: Path | None) -> None:
    """Raise `ConfigError` now if `write_json` could not write there later. Leaves nothing behind."""
    if path is None:
        return
    try:
        usable = path.is_file() or not path.exists()  # neither a folder nor a device such as /dev/null
        if usable:
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        if path.is_file():
            path.open("a").close()
    except (OSError, ValueError, RuntimeError) as error:  # no such folder, a NUL in the name, a loop of links
        raise ConfigError(f"--json {path} cannot be written: {getattr(error, 'strerror', error)}") from error
    require(usable, f"--json {path} is {'a folder' if path.is_dir() else 'no regular file'}: give the name of a file")


def require_writable_folder(folder: Path) -> None:
    """Raise `ConfigError` now if no file could be written to the folder later. Creates nothing."""
    require("\0" not in str(folder), f"--out {folder} cannot be written: a name has no NUL")
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise ConfigError(f"--out {folder} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def write_json(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document as a whole: a reader sees the old file or the new one, never a part. None: write nothing.

    A file that was there keeps its mode, a new one has what the umask leaves.
    """
    if path is None:
        return
    path = path.resolve()  # a link stays a link
    content = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
    temporary = path.with_name(f"{token_hex(8)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))  # before there is anything to read
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
