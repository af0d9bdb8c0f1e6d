"""What exercises begin as, where the part before the lesson has another contract than the one after it."""

from __future__ import annotations

from torch import Tensor

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs
from ...decode.parts import Append
from ...kv.buffers import index_tensor
from ...kv.one_table import KVBlockManager
from ...models.shape import Model


class KVAppend:
    """Slots are found on the host, from the lists of the sessions, as in lesson 062."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, inputs: DecodeInputs) -> Append:
        """What writes one layer's K and V [B, H, D], for all sessions."""
        tables = [session.table for session in inputs.sessions]
        ends = index_tensor([table[-1] for table in tables], self.kv.device)
        free = index_tensor([table.num_tokens % self.kv.block_size for table in tables], self.kv.device)

        def append(layer_idx: int, k: Tensor, v: Tensor) -> None:
            self.kv.k_layers[layer_idx][ends, :, free] = k
            self.kv.v_layers[layer_idx][ends, :, free] = v

        return append
