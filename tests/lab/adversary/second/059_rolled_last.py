"""lesson: 059
verdict: wrong
cause: wrong-session
shows: cpu
The blocks of those that rolled over are put behind the others, but `batch_idx` is sorted again: rows and blocks part.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx,
                [session.block_ids_per_layer[layer_idx] for session in sessions],
                keys[layer_idx],
                values[layer_idx],
            )

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        ready: list[tuple[int, KVBlockInfo]] = []
        rolled: list[tuple[int, KVBlockInfo]] = []
        shared: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                rolled.append((b, self.kv.info(block_ids[-1])))
            elif info.owners > 1:
                shared.append(b)
            else:
                ready.append((b, info))

        together = ready + rolled
        if together:
            batch_idx = sorted(b for b, _ in together)  # index_select likes its rows in order
            infos = [info for _, info in together]
            self.write(layer_idx, batch_idx, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        rows = index_tensor(batch_idx, device)
        blocks = index_tensor([info.block_index for info in infos], device)
        slots = index_tensor([info.length for info in infos], device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)
