"""The decode step and the best version of each of its parts."""

from ..kv.blocks import KVBlockManager
from .delivery import Delivery
from .five_kernels import LayerOps
from .forward import DecodeForward
from .inputs import Batch, DecodeInputs
from .parts import DecodeParts
from .pipeline import Pipeline
from .prefill import Prefill
from .rows import Rows
from .runner import DeviceStep, GraphRunner
from .step import CopyBlocks, DecodeStep, KVAppend

BEST = DecodeParts(
    cache=KVBlockManager,
    step=DecodeStep,
    block_tables=None,
    forward=DecodeForward,
    kv_append=KVAppend,
    pipeline=Pipeline,
    prefill=Prefill,
    delivery=Delivery,
    ops=LayerOps,
    copy_blocks=CopyBlocks,
    rows=Rows,
    runner=GraphRunner,
    device_step=DeviceStep,
)

__all__ = ["BEST", "Batch", "DecodeInputs", "DecodeParts", "DecodeStep"]
