"""lesson: 038
verdict: wrong
cause: wrong-layer
shows: cpu
One store function per layer is made in the constructor, in a loop. Each closes over the loop's variables, which stand at the last layer when it is called.
So the batched stores of all layers go into the caches of the last layer; slow appends and the lengths are right.
"""
from collections.abc import Callable

from torch import Tensor

from rosecourse.lessons.l035_blocks import KVBlockInfo
from rosecourse.kv.buffers import index_tensor

Store = Callable[[Tensor, Tensor, Tensor, Tensor], None]


class MyKVAppend:
    """The stores of all layers are made once, in the constructor; a step only calls them."""

    def __init__(self, model, kv, config) -> None:
        self.kv = kv
        self.stores: list[Store] = []
        for k_layer, v_layer in zip(kv.k_layers, kv.v_layers, strict=True):

            def store(blocks: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
                k_layer[blocks, :, slots] = k
                v_layer[blocks, :, slots] = v

            self.stores.append(store)

    def __call__(self, sessions, keys, values) -> None:
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new) -> None:
        free_slot, others = self.parted(block_ids_list)
        if free_slot:
            rows = index_tensor(list(free_slot), self.kv.device)
            blocks = index_tensor([info.block_index for info in free_slot.values()], self.kv.device)
            slots = index_tensor([info.length for info in free_slot.values()], self.kv.device)
            self.stores[layer_idx](
                blocks, slots, key_new.index_select(0, rows), value_new.index_select(0, rows)
            )
            for info in free_slot.values():
                info.length += 1
        for row in others:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def parted(self, block_ids_list: list[list[int]]) -> tuple[dict[int, KVBlockInfo], list[int]]:
        free_slot: dict[int, KVBlockInfo] = {}
        others: list[int] = []
        for row, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.owners > 1 or info.length >= self.kv.block_size:
                others.append(row)
            else:
                free_slot[row] = info
        return free_slot, others
