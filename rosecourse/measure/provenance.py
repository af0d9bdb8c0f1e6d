"""Where a figure comes from: the commit, the machine, and the versions of the packages."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__

PACKAGES = ("torch", "triton", "transformers", "numpy")
SOURCE = Path(__file__).resolve().parents[2]
MEASURED_FILES = ("rosecourse", "data/tiny-gpt2")  # a change here may change a figure


def driver_version() -> str | None:
    """The NVIDIA driver's version; None where nvidia-smi cannot tell."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def provenance() -> dict[str, Any]:
    """Commit, dirty flag, host and versions: what a figure depends on, and nothing about whose machine it is."""
    cuda = torch.cuda.is_available()
    return {
        "commit": git("rev-parse", "HEAD"),
        "dirty": None if (status := git("status", "--porcelain", "--", *MEASURED_FILES)) is None else bool(status),
        "host": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "os": f"{platform.system()} {platform.machine()}",
            "gpu": torch.cuda.get_device_name() if cuda else None,
        },
        "versions": {"rosecourse": __version__, "python": platform.python_version(), **package_versions()},
    }


def git(*arguments: str) -> str | None:
    """What git says in the checkout of this package; None where the package is not a checkout of its own."""
    try:
        top = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], cwd=SOURCE, capture_output=True, text=True, check=True
        ).stdout.strip()
        if Path(top) != SOURCE:
            return None
        return subprocess.run(
            ["git", *arguments], cwd=SOURCE, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def package_versions() -> dict[str, str | None]:
    """The versions of `PACKAGES`; None for one that is not installed under its name."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{cpu_name()} ({threads} thread{'s' if threads > 1 else ''})"


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
