"""Writing files: whole or not at all, and only after asking whether they can be written; and a run as JSON has it."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ..checks import require
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..measure.workload import Run


def require_writable(path: Path | None, flag: str = "--json") -> Path | None:
    """The path; raises `ConfigError` if a file could not be written there later. Leaves nothing behind."""
    if path is None:
        return None
    try:
        usable = path.is_file() or not path.exists()  # neither a folder nor a device such as /dev/null
        if usable:
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        if path.is_file():
            path.open("a").close()
    except (OSError, ValueError, RuntimeError) as error:  # no such folder, a NUL in the name, a loop of links
        raise ConfigError(f"{flag} {path} cannot be written: {getattr(error, 'strerror', error)}") from error
    require(usable, f"{flag} {path} is {'a folder' if path.is_dir() else 'no regular file'}: give the name of a file")
    return path


def write_json(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document, as `write_whole` does. None: write nothing."""
    if path is not None:
        write_whole(path, (json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as a whole: a reader sees the old file or the new one, never a part.

    A file that was there keeps its mode, a new one has what the umask leaves.
    """
    path = path.resolve()  # a link stays a link
    temporary = path.with_name(f"{token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))  # before there is anything to read
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def plain_run(run: Run) -> dict[str, Any]:
    """A run with every raw sample, in seconds from its start, to the microsecond."""

    def at(moment: float) -> float:
        return round(moment - run.start, 6)

    requests = [
        {"submitted": at(one.submitted), "admitted": at(one.admitted)}
        | {name: [at(moment) for moment in getattr(one, name)] for name in ("tokens", "read")}
        for one in run.times
    ]
    names = ("prefill_seconds", "decode_seconds", "decode_steps", "preemptions")
    counted = {name: round(getattr(run.stats, name), 6) for name in names}
    return {"total_seconds": round(run.total_seconds, 6), **counted, "requests": requests}
