"""What a learner's code has put over functions and methods that others use: torch's, NumPy's and the course's own.

The originals are those that stood when this module was imported, before any class of a learner.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

import numpy
import torch

from .causes import Cause
from .fault import Fault, PartIsWrong

LIBRARIES = (torch, torch.Tensor, torch.nn.functional, numpy)
OURS = "rosecourse."
FOR_THEMSELVES = ("torch", "numpy")  # they replace functions of their own when these are first used
WITH_OBJECTS = ("rosecourse.kv.", "rosecourse.request.", "rosecourse.models.", "rosecourse.decode.")  # that parts meet


def _namespaces() -> list[Any]:
    """Modules and classes whose functions are watched."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(OURS)]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [*LIBRARIES, *modules, *classes]


def _functions(namespace: Any) -> dict[str, Any]:
    """What can be called in a namespace, by name."""
    return {name: value for name, value in list(vars(namespace).items()) if _is_watched(value)}


def _is_watched(value: Any) -> bool:
    return not isinstance(value, ModuleType) and (callable(value) or isinstance(value, property | classmethod))


def _values(namespace: Any) -> dict[str, Any]:
    """The values that objects of a class of the course begin with, by name."""
    if not isinstance(namespace, type) or not namespace.__module__.startswith(WITH_OBJECTS):
        return {}
    plain = (str, int, float, tuple, type(None))
    return {name: value for name, value in vars(namespace).items() if isinstance(value, plain) and name[:2] != "__"}


class Originals:
    """The functions of all namespaces, each as it was at the start."""

    def __init__(self) -> None:
        self._of: list[tuple[Any, dict[str, Any]]] = []
        self.data: set[str] = set()  # the names of those that are values of a class, and no functions
        for namespace in _namespaces():
            values = _values(namespace)
            self._of.append((namespace, _functions(namespace) | values))
            self.data |= {f"{_name_of(namespace)}.{name}" for name in values}

    def put_back(self) -> list[str]:
        """Put the originals back; the names of those that had been replaced, such as `torch.tensor`."""
        replaced = []
        for namespace, functions in self._of:
            now = vars(namespace)
            for name, value in functions.items():
                if now.get(name) is not value and _package(now.get(name)) not in FOR_THEMSELVES:
                    replaced.append(f"{_name_of(namespace)}.{name}")
                    setattr(namespace, name, value)
            for name in _added(namespace, functions):
                replaced.append(f"{_name_of(namespace)}.{name}")
                delattr(namespace, name)
        return replaced


def _added(namespace: Any, functions: dict[str, Any]) -> list[str]:
    """Names of functions that have come to a class from elsewhere, and hide those of its bases."""
    if not isinstance(namespace, type):
        return []
    new = [(name, value) for name, value in vars(namespace).items() if name not in functions]
    return [
        name
        for name, value in new
        if isinstance(value, FunctionType) and _package(value) not in (*FOR_THEMSELVES, "rosecourse")
    ]


def _package(value: Any) -> str:
    """The package that a function comes from; empty if it does not say."""
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def _name_of(namespace: Any) -> str:
    return namespace.__name__ if isinstance(namespace, ModuleType) else namespace.__qualname__


ORIGINALS = Originals()


def look_for_patches() -> None:
    """Undo what a part has put over functions of others, and raise `PartIsWrong` if there was anything."""
    replaced = ORIGINALS.put_back()
    shared = [name for name in replaced if name in ORIGINALS.data]
    if shared:
        what = f"the part keeps something in {shared[0]}, which all objects of that class share"
        reason = "keep it in an object: what is kept of one must not be found by others"
        raise PartIsWrong(Fault(what, reason=reason, cause=Cause.STATE_KEPT))
    if replaced:
        reason = "others use it too: write the new way into the part itself"
        raise PartIsWrong(Fault(f"the part replaced {replaced[0]}", reason=reason, cause=Cause.TAMPERING))
