"""Writing a JSON file, and asking beforehand whether it can be written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ..checks import require
from ..errors import ConfigError
from .whole_file import require_writable_file, write_whole


def require_writable_json(path: Path | None) -> None:
    """Raise `ConfigError` now if `write_json` could not write there later. Leaves nothing behind."""
    require_writable_file(path, "--json")


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
    """Write a document, as `write_whole` does. None: write nothing."""
    if path is not None:
        content = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
        write_whole(path, content.encode())
