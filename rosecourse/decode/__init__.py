"""The decode step and the best version of each of its parts."""

from ..kv.blocks import KVBlockManager
from .copy_blocks import CopyBlocks
from .delivery import Delivery
from .device_step import DeviceStep
from .five_kernels import LayerOps
from .forward import DecodeForward
from .inputs import DecodeInputs, DecodeOutputs
from .kv_append import KVAppend
from .parts import DecodeParts
from .pipeline import Pipeline
from .prefill import Prefill
from .rows import Rows
from .runner import GraphRunner
from .start import Start
from .step import DecodeStep

BEST = DecodeParts(
    cache=KVBlockManager,
    step=DecodeStep,
    block_tables=None,
    forward=DecodeForward,
    kv_append=KVAppend,
    pipeline=Pipeline,
    prefill=Prefill,
    start=Start,
    delivery=Delivery,
    ops=LayerOps,
    copy_blocks=CopyBlocks,
    rows=Rows,
    runner=GraphRunner,
    device_step=DeviceStep,
)

__all__ = ["BEST", "DecodeInputs", "DecodeOutputs", "DecodeParts", "DecodeStep"]
