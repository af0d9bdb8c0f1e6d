# right
from dataclasses import dataclass
from functools import cached_property

from torch import device

from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockInfo


@dataclass(frozen=True)
class Target:
    row: int
    info: KVBlockInfo

    @property
    def must_copy(self):
        return self.info.owners > 1


@dataclass(frozen=True)
class Plan:
    targets: tuple[Target, ...]
    batch: int
    device: device

    @cached_property
    def blocks(self):
        return index_tensor([target.info.block_index for target in self.targets], self.device)

    @cached_property
    def slots(self):
        lengths = [target.info.length for target in self.targets]
        low, high = (min(lengths), max(lengths))
        return low if low == high else index_tensor(lengths, self.device)

    @cached_property
    def selection(self):
        if len(self.targets) == self.batch:
            return None
        return index_tensor([target.row for target in self.targets], self.device)

    def store(self, cache, new):
        rows = new if self.selection is None else new.index_select(0, self.selection)
        cache[self.blocks, :, self.slots] = rows

    def count(self):
        for target in self.targets:
            target.info.length += 1


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def scan(self, layer_idx, block_ids_list):
        for row, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None:
                block_ids.append(self.kv.allocate_block(layer_idx, 0))
            elif info.length >= self.kv.block_size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length))
            yield Target(row, self.kv.info(block_ids[-1]))

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        targets = list(self.scan(layer_idx, block_ids_list))
        alone = [target.row for target in targets if target.must_copy]
        together = tuple((target for target in targets if not target.must_copy))
        if together:
            plan = Plan(together, len(block_ids_list), self.kv.device)
            plan.store(self.kv.k_layers[layer_idx], key_new)
            plan.store(self.kv.v_layers[layer_idx], value_new)
            plan.count()
        for row in alone:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
