"""Where a figure comes from: the commit, the machine, and the versions of the packages."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from .. import __version__

PACKAGES = ("torch", "triton", "transformers", "numpy")
SOURCE = Path(__file__).resolve().parents[2]
MEASURED_FILES = ("rosecourse", "data/tiny-gpt2")  # a change here may change a figure


def provenance() -> dict[str, Any]:
    """Commit, dirty flag, host and versions: what a figure depends on, and nothing about whose machine it is."""
    cuda = torch.cuda.is_available()
    driver = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else None
    return {
        "commit": git("rev-parse", "HEAD"),
        "dirty": None if (status := git("status", "--porcelain", "--", *MEASURED_FILES)) is None else bool(status),
        "host": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "os": f"{platform.system()} {platform.machine()}",
            "gpu": torch.cuda.get_device_name() if cuda else None,
            "driver": driver.split()[0] if driver else None,
        },
        "versions": {"rosecourse": __version__, "python": platform.python_version(), **package_versions()},
    }


def git(*arguments: str) -> str | None:
    """What git says in the checkout of this package; None where the package is not a checkout of its own."""
    return said("git", *arguments) if (SOURCE / ".git").exists() else None


def said(*command: str) -> str | None:
    """What a program says; None where it fails or is not installed."""
    try:
        return subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def package_versions() -> dict[str, str | None]:
    """The versions of `PACKAGES`; None for one that is not installed under its name."""
    return {name: next((one.version for one in distributions(name=name)), None) for name in PACKAGES}


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{cpu_name()} ({threads} thread{'s' if threads > 1 else ''})"


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
