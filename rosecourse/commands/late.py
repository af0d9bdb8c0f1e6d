"""Modules that are imported late: importing torch takes seconds, which neither --help nor a bad flag should cost."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .ending import interrupts_leave

ROOMS = {
    "commands": ("engines",),
    "lab.checks": ("checking",),
    "lab.exercises": ("own_run", "part_file"),
    "measure": ("metrics", "provenance", "rivals", "samples", "serving", "stats", "summary", "workload"),
    "request": ("session",),
    "serving": ("engine_client", "engine_process", "replicas", "run"),
}
MODULES = {name: f"rosecourse.{room}.{name}" for room, names in ROOMS.items() for name in names}
MODULES |= {"torch": "torch", "tqdm": "tqdm", "figures": "matplotlib.figure"}
MODULES |= {"pictures_of_servers": "rosecourse.pictures.serving"}


class Late:
    """A module that is imported when one of its names is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        with interrupts_leave():
            return getattr(import_module(self._module), name)


def __getattr__(name: str) -> Late:
    if name not in MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return Late(MODULES[name])
