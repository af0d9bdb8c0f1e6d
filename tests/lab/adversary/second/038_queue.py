"""lesson: 038
verdict: wrong
cause: hangs
shows: cpu
A session whose last block is shared goes back into the queue until the block has one owner: if no sibling copies it, for ever.
"""

from collections import deque

from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Work off a queue of rows; what is not ready yet is put back behind the others."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        queue = deque(range(len(block_ids_list)))
        rows, infos = [], []
        copied = set()  # shared blocks that somebody has begun to leave
        while queue:
            b = queue.popleft()
            ids = block_ids_list[b]
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                self.kv.append_token(layer_idx, ids, key_new[b], value_new[b])
            elif info.owners == 1:
                rows.append(b)
                infos.append(info)
            elif ids[-1] not in copied and any(block_ids_list[other][-1:] == ids[-1:] for other in queue):
                copied.add(ids[-1])  # the first one takes a copy, the next one may have the original
                self.kv.append_token(layer_idx, ids, key_new[b], value_new[b])
            else:
                queue.append(b)  # wait until it has the block to itself
        if rows:
            idx_t = index_tensor(rows, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
        for info in infos:
            info.length += 1
