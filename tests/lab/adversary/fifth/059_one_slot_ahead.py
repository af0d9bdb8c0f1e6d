"""lesson: 059
verdict: wrong
cause: rollover-missed
shows: cpu
A new block is begun when the token that comes would fill the last one, one slot too early.
The last slot of every block stays empty, and the token that belongs there lies in slot 0 of the next block.
"""
from dataclasses import dataclass

from rosecourse.lessons.l035_blocks import KVBlockInfo
from rosecourse.kv.buffers import index_tensor


@dataclass(slots=True)
class Place:
    row: int
    info: KVBlockInfo


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.last_slot = kv.block_size - 1

    def __call__(self, sessions, keys, values):
        for i in range(self.kv.num_layers):
            self.append_token_batch(i, [s.block_ids_per_layer[i] for s in sessions], keys[i], values[i])

    def room_for(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        """The block that the next token goes to; it is made here if there is none."""
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is None or info.length >= self.last_slot:
            block_ids.append(self.kv.allocate_block(layer_idx, len(block_ids) * self.kv.block_size))
            info = self.kv.info(block_ids[-1])
        return info

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        places: list[Place] = []
        shared: list[int] = []
        for row, block_ids in enumerate(block_ids_list):
            place = Place(row, self.room_for(layer_idx, block_ids))
            if place.info.owners > 1:
                shared.append(row)
            else:
                places.append(place)

        if places:
            rows = index_tensor([p.row for p in places], self.kv.device)
            blocks = index_tensor([p.info.block_index for p in places], self.kv.device)
            slots = index_tensor([p.info.length for p in places], self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)
            for p in places:
                p.info.length += 1

        for row in shared:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
