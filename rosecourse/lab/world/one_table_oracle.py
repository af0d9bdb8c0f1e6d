"""The oracle for parts that append after the forward, where a session has one table for all layers."""

from __future__ import annotations

from .books import ONE_TABLE_BOOKS
from .layout import ONE_TABLE
from .oracle import AppendOracle


class OneTableOracle(AppendOracle):
    """For a part `kv_append` of lesson 062: it makes room, appends in all layers, and counts the token."""

    layout, books = ONE_TABLE, ONE_TABLE_BOOKS
