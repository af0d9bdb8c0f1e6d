"""The decode step of an engine, known as the class whose insides the lab reads.

An engine promises no more than the protocol `Step`. A scene looks further: at the tables that one part of it returns.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...lessons.l035 import AppendAfterForward


def block_tables_of(step: object) -> Any:
    """The part of a decode step that makes block tables. Raises `ConfigError` for a step of another kind."""
    if not isinstance(step, AppendAfterForward):
        raise ConfigError(f"the lab reads decode steps of the class AppendAfterForward, not {type(step).__name__}")
    return step.block_tables
