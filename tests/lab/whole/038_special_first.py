# right
import enum
from dataclasses import dataclass, field
from typing import Any

from rosecourse.kv.buffers import index_tensor


class Case(enum.Enum):
    FIRST_BLOCK = enum.auto()
    NEXT_BLOCK = enum.auto()
    COPY = enum.auto()
    FREE_SLOT = enum.auto()


@dataclass(frozen=True)
class Target:
    row: int
    info: Any

    @property
    def address(self):
        return (self.row, self.info.block_index, self.info.length)


@dataclass
class Plan:
    targets: list[Target] = field(default_factory=list)
    special: list[int] = field(default_factory=list)


class Classifier:
    def __init__(self, kv):
        self.kv = kv

    def case(self, ids):
        if not ids:
            return Case.FIRST_BLOCK
        info = self.kv.info(ids[-1])
        if info.length == self.kv.block_size:
            return Case.NEXT_BLOCK
        return Case.COPY if info.owners > 1 else Case.FREE_SLOT

    def plan(self, lists):
        plan = Plan()
        for row, ids in enumerate(lists):
            if self.case(ids) is Case.FREE_SLOT:
                plan.targets.append(Target(row, self.kv.info(ids[-1])))
            else:
                plan.special.append(row)
        return plan


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.classifier = Classifier(kv)

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        plan = self.classifier.plan(block_ids_list)
        for row in plan.special:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
        if not plan.targets:
            return
        addresses = [target.address for target in plan.targets]
        rows, blocks, slots = (index_tensor(list(column), self.kv.device) for column in zip(*addresses))
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new.index_select(0, rows)
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new.index_select(0, rows)
        for target in plan.targets:
            target.info.length += 1
