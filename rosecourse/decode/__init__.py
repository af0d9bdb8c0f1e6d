"""The decode step and the best version of each of its parts."""

from ..kv.blocks import KVBlockManager
from .block_tables import BlockTables
from .forward import DecodeForward
from .inputs import DecodeInputs, DecodeOutputs
from .kv_append import KVAppend
from .parts import DecodeParts
from .step import AppendAfterForward

BEST = DecodeParts(
    cache=KVBlockManager,
    step=AppendAfterForward,
    block_tables=BlockTables,
    forward=DecodeForward,
    kv_append=KVAppend,
)

__all__ = ["BEST", "AppendAfterForward", "DecodeInputs", "DecodeOutputs", "DecodeParts"]
