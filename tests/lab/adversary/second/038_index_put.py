"""lesson: 038
verdict: wrong
cause: half-written
shows: cpu
K is stored with `index_put_`, V with `index_put`, which gives back a new tensor that nobody keeps: V is never written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rosecourse import InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor


@dataclass
class Batch:
    rows: list[int] = field(default_factory=list)
    infos: list[KVBlockInfo] = field(default_factory=list)

    def add(self, row: int, info: KVBlockInfo) -> None:
        self.rows.append(row)
        self.infos.append(info)


@dataclass
class MyKVAppend:
    model: object
    kv: KVBlockManager
    config: object

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        batch = Batch()
        special: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is not None and info.owners == 1 and info.length < self.kv.block_size:
                batch.add(b, info)
            else:
                special.append(b)
        if batch.rows:
            device = self.kv.device
            rows = index_tensor(batch.rows, device)
            blocks = index_tensor([info.block_index for info in batch.infos], device)
            slots = index_tensor([info.length for info in batch.infos], device)
            # [num_blocks, block_size, H, D], so that the two indices stand side by side
            self.kv.k_layers[layer_idx].transpose(1, 2).index_put_((blocks, slots), key_new[rows])
            self.kv.v_layers[layer_idx].transpose(1, 2).index_put((blocks, slots), value_new[rows])
            for info in batch.infos:
                info.length += 1
        for b in special:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
