"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
The part asks first whether the last block is shared, and only then whether it is full. So sessions that share a full block take append_token at the boundary, one by one.
All results are right; sessions with a full block of their own stay in the batch, as they should.
"""
from enum import Enum, auto

from rosecourse.kv.buffers import index_tensor


class Kind(Enum):
    NEXT_SLOT = auto()
    NEW_BLOCK = auto()
    SHARED = auto()


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def kind(self, block_ids):
        if not block_ids:
            return Kind.NEW_BLOCK
        last = self.kv.info(block_ids[-1])
        if last.owners > 1:
            return Kind.SHARED
        if last.length == self.kv.block_size:
            return Kind.NEW_BLOCK
        return Kind.NEXT_SLOT

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        rows, infos, shared = [], [], []
        for row, block_ids in enumerate(block_ids_list):
            match self.kind(block_ids):
                case Kind.SHARED:
                    shared.append(row)
                    continue
                case Kind.NEW_BLOCK:
                    start = len(block_ids) * self.kv.block_size
                    block_ids.append(self.kv.allocate_block(layer_idx, start))
            rows.append(row)
            infos.append(self.kv.info(block_ids[-1]))

        if rows:
            row_t = index_tensor(rows, self.kv.device)
            block_t = index_tensor([info.block_index for info in infos], self.kv.device)
            slot_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][block_t, :, slot_t] = key_new.index_select(0, row_t)
            self.kv.v_layers[layer_idx][block_t, :, slot_t] = value_new.index_select(0, row_t)
            for info in infos:
                info.length += 1

        for row in shared:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
