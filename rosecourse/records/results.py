"""The results folder, data/results/<gpu>/: where each recorded file lies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checks import require, shown
from ..config import DATA
from ..errors import ConfigError

RESULTS = DATA / "results"
SHIPPED_GPU = "nvidia-h200"  # the one whose recordings come with the course


def gpu_folder(gpu: str) -> str:
    """A GPU's name as the name of its folder: `NVIDIA H200` is `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def require_known(name: Any, known: Sequence[str], what: str) -> None:
    """Raise `ConfigError` unless a name is one of those that are known. what: what it should name."""
    fits = isinstance(name, str) and name in known
    require(fits, f"there is no {what} {shown(name)}: give one of {', '.join(known)}")


def results_file(name: str, gpu: str | None = None, folder: Path = RESULTS) -> Path | None:
    """The recorded file of this name, or None where there is none.

    gpu: a name such as `NVIDIA H200`, or its folder's, `nvidia-h200`. None takes the course's own GPU if it has such a
    file, else the first that does. folder: of all GPUs' folders.
    """
    require(gpu is None or isinstance(gpu, str), f"gpu is {shown(gpu)}: give a name such as 'NVIDIA H200', or None")
    gpus = _gpus_with_file(name, folder)
    chosen = gpu_folder(gpu) if gpu is not None else next(iter(gpus), None)
    return Path(folder) / chosen / name if chosen in gpus else None


def _gpus_with_file(name: str, folder: Path) -> list[str]:
    """The GPUs, as their folders are named, that have a file of this name; the course's own comes first."""
    require(isinstance(folder, (str, Path)) and "\0" not in str(folder), f"folder is {shown(folder)}: give a path")
    try:
        gpus = [path.parent.name for path in Path(folder).glob(f"*/{name}")]
    except OSError as error:
        raise ConfigError(f"folder {shown(folder)} cannot be read: {error.strerror}") from error
    return sorted(gpus, key=lambda gpu: (gpu != SHIPPED_GPU, gpu))
