"""Writing a file: whole or not at all, and only after asking whether it can be written."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from secrets import token_hex

from ..checks import require
from ..errors import ConfigError


def require_writable_file(path: Path | None, flag: str) -> None:
    """Raise `ConfigError` now if `write_whole` could not write there later. Leaves nothing behind.

    flag: the one that names the file, for the message. None: no file is asked for.
    """
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
        raise ConfigError(f"{flag} {path} cannot be written: {getattr(error, 'strerror', error)}") from error
    require(usable, f"{flag} {path} is {'a folder' if path.is_dir() else 'no regular file'}: give the name of a file")


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
