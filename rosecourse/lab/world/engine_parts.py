"""The cache and the decode step of an engine, known as the classes whose insides the lab reads.

An engine promises no more than the protocols `CacheLayout` and `Step`. Scenes and judges look further: at the owners of
a block, or at the tables that one part of the step returns.
"""

from __future__ import annotations

from ...decode.parts import BlockTables
from ...errors import ConfigError
from ...kv.blocks import KVBlockManager
from ...lessons.step.l035_append_after_forward import AppendAfterForward


def per_layer_cache(kv: object) -> KVBlockManager:
    """The same cache, known to keep blocks of their own for each layer. Raises `ConfigError` for another kind."""
    if not isinstance(kv, KVBlockManager):
        raise ConfigError(f"the lab reads caches of the class KVBlockManager, not {type(kv).__name__}")
    return kv


def block_tables_of(step: object) -> BlockTables:
    """The part of a decode step that makes block tables. Raises `ConfigError` for a step of another kind."""
    if not isinstance(step, AppendAfterForward):
        raise ConfigError(f"the lab reads decode steps of the class AppendAfterForward, not {type(step).__name__}")
    return step.block_tables
