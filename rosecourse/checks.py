"""Checks of what is handed in: one clear line that names the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from .errors import ConfigError


def shown(value: object) -> str:
    """A value as a message shows it: on one line, of at most 60 characters."""
    text = _said(repr, value) or f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def require_a(kind: type, value: object, name: str) -> None:
    """Raise `ConfigError` unless the value is of this type. It is asked often: text is made only for an error."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}: give an object of type {kind.__name__}")


def is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_within(value: object, least: float, most: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not value < least and value <= most


def check_fields(settings: Any, **rules: tuple[Callable[[Any], bool], str]) -> None:
    """Raise `ConfigError` for a field of a dataclass that is not well. rules: whether a value is, and what to give.

    Numbers of other kinds, such as numpy's, become Python's own.
    """
    for name, (well, give) in rules.items():
        value = getattr(settings, name)
        require(well(value), f"{name} is {shown(value)}: give {give}")
        if isinstance(value, Real) and not isinstance(value, bool):
            object.__setattr__(settings, name, int(value) if isinstance(value, Integral) else float(value))


def one_line(message: object) -> str:
    """A message without line breaks, whatever a flag's value brought into it."""
    return _said(str, message) or type(message).__name__


def told(error: BaseException) -> str:
    """The type of an exception, and what it says, on one line."""
    return f"{type(error).__name__}: {_said(str, error)}".removesuffix(": ")


def _said(say: Callable[[object], str], value: object) -> str:
    """What an object says of itself, on one line; empty where it cannot say it."""
    try:
        return " ".join(say(value).split())
    except KeyboardInterrupt:
        raise
    except BaseException:  # a number of more digits than Python prints, or whatever a class does there
        return ""
