"""lesson: 038
verdict: wrong
cause: size-limit
shows: cpu
Block and slot are packed into one number with five bits for the slot: right up to block size 32, not at 64 from slot 32 on.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.kv.buffers import index_tensor

SLOT_BITS = 5


def pack(info) -> int:
    return info.block_index << SLOT_BITS | info.length


class MyKVAppend:
    """Only one list goes to the device beside the rows: block and slot of each row in one integer."""

    def __init__(self, model, kv, config) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence, keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def append_token_batch(self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor):
        rows, codes, infos, others = [], [], [], []
        for b, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info and info.owners == 1 and info.length < self.kv.block_size:
                rows.append(b)
                codes.append(pack(info))
                infos.append(info)
            else:
                others.append(b)
        if rows:
            row_t, code_t = index_tensor([rows, codes], self.kv.device)
            blk_t, pos_t = code_t >> SLOT_BITS, code_t & ((1 << SLOT_BITS) - 1)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new[row_t]
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new[row_t]
            for info in infos:
                info.length += 1
        for b in others:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
