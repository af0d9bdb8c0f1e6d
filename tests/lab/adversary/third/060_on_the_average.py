"""lesson: 060
verdict: wrong
cause: wrong-slot
shows: cpu
The position counts as constant if the sum of all is `n` times the first. Positions such as 2, 1, 3 have that sum too:
then everyone is written into the first one's slot.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """No index tensors for a whole batch or one position; the sum of the positions is taken along in the scan."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        batch_idx: list[int] = []
        infos: list[KVBlockInfo] = []
        slow: list[int] = []
        total = 0
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                total += info.length
                batch_idx.append(b)
                infos.append(info)
        if infos:
            const_pos = total == len(infos) * infos[0].length
            self.write(layer_idx, batch_idx, infos, const_pos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, const_pos, key_new, value_new) -> None:
        device = self.kv.device
        blocks = index_tensor([info.block_index for info in infos], device)
        slots = infos[0].length if const_pos else index_tensor([info.length for info in infos], device)
        if len(batch_idx) != len(key_new):
            chosen = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, chosen), value_new.index_select(0, chosen)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
