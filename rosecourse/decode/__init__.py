"""The decode step and the best version of each of its parts."""

from .block_tables import BlockTables
from .forward import DecodeForward
from .kv_append import KVAppend
from .step import DecodeInputs, DecodeOutputs, DecodeParts, DecodeStep

BEST = DecodeParts(block_tables=BlockTables, forward=DecodeForward, kv_append=KVAppend)

__all__ = ["BEST", "DecodeInputs", "DecodeOutputs", "DecodeParts", "DecodeStep"]
