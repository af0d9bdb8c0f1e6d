"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
Keeps the index tensors under the blocks' ids and counts the slots up itself; a block that was given back and taken
again, or a step that a session sat out, leaves slots that are no longer true.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """The indexed store, with index tensors that are made once for each set of blocks."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.indices: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def places(self, ids: tuple[int, ...], infos: list[KVBlockInfo]) -> tuple[Tensor, Tensor]:
        if ids not in self.indices:
            blocks = index_tensor([info.block_index for info in infos], self.kv.device)
            slots = index_tensor([info.length for info in infos], self.kv.device)
            self.indices[ids] = blocks, slots
        else:
            self.indices[ids][1].add_(1)  # the same blocks as in the last step, one slot further
        return self.indices[ids]

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        rows, ids, infos, rest = [], [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                rest.append(b)
                continue
            rows.append(b)
            ids.append(block_ids[-1])
            infos.append(info)
        if rows:
            blocks, slots = self.places(tuple(ids), infos)
            idx_t = index_tensor(rows, self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, idx_t)
        for info in infos:
            info.length += 1
        for b in rest:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
