"""Lesson 062's parts are judged in their world: right ones live through it, wrong ones are told their causes."""

from collections import Counter

import pytest

from rosecourse.kv.buffers import index_tensor
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.worlds import KV_APPEND_ONE_TABLE as WORLD
from rosecourse.lessons import lesson


class Plain:
    """Makes room, writes layer by layer, and counts; the wrong ones change one method."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        tables = [session.table for session in sessions]
        self.make_room(tables)
        for layer in range(self.kv.num_layers):
            self.write(layer, tables, keys[layer], values[layer])
        self.count(tables)

    def make_room(self, tables):
        for source, destination in self.kv.place(tables):
            self.copy(source, destination)

    def copy(self, source, destination):
        self.kv.keys[:, destination] = self.kv.keys[:, source]
        self.kv.values[:, destination] = self.kv.values[:, source]

    def write(self, layer, tables, k, v):
        blocks = index_tensor([self.block(table) for table in tables], self.kv.device)
        slots = index_tensor([self.slot(table) for table in tables], self.kv.device)
        self.kv.k_layers[layer][blocks, :, slots] = k
        self.kv.v_layers[layer][blocks, :, slots] = v

    def block(self, table):
        return table[-1]

    def slot(self, table):
        return table.num_tokens % self.kv.block_size

    def count(self, tables):
        for table in tables:
            table.num_tokens += 1


class ByHand(Plain):
    """Makes room without `place`, a session at a time, once it is known that there is enough."""

    def make_room(self, tables):
        if not self.kv.can_append(tables):
            super().make_room(tables)  # raises
        for table in tables:
            super().make_room([table])


class LooksUpOnce(Plain):
    """One store for all layers."""

    def __call__(self, sessions, keys, values):
        tables = [session.table for session in sessions]
        self.make_room(tables)
        for table, b in zip(tables, range(len(tables)), strict=True):
            for cache, new in ((self.kv.keys, keys), (self.kv.values, values)):
                for layer, rows in enumerate(new):
                    cache[layer, self.block(table), :, self.slot(table)] = rows[b]
        self.count(tables)


class NoCopy(Plain):
    def copy(self, source, destination):
        pass


class CopiesKeysAlone(Plain):
    def copy(self, source, destination):
        self.kv.keys[:, destination] = self.kv.keys[:, source]


class CopiesLayerZeroAlone(Plain):
    def copy(self, source, destination):
        self.kv.k_layers[0][destination] = self.kv.k_layers[0][source]
        self.kv.v_layers[0][destination] = self.kv.v_layers[0][source]


class CopiesTheOtherWay(Plain):
    def copy(self, source, destination):
        super().copy(destination, source)


class CountsInEachLayer(Plain):
    """And makes room for each layer's token."""

    def write(self, layer, tables, k, v):
        self.make_room(tables)
        super().write(layer, tables, k, v)
        self.count(tables)

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.write(layer, [session.table for session in sessions], keys[layer], values[layer])


class ForgetsToCount(Plain):
    def count(self, tables):
        pass


class ForgetsRoom(Plain):
    def make_room(self, tables):
        for table in tables:
            if not table:
                self.kv.place([table])


class WritesIntoShared(Plain):
    def make_room(self, tables):
        for table in tables:
            if table.num_tokens == len(table) * self.kv.block_size:
                table.append(self.kv.allocate_block())


class FirstBlock(Plain):
    def block(self, table):
        return table[0]


class SlotBehind(Plain):
    def slot(self, table):
        return (table.num_tokens + 1) % self.kv.block_size


class LayerBefore(Plain):
    def write(self, layer, tables, k, v):
        super().write(max(layer - 1, 0), tables, k, v)


class Swaps(Plain):
    def write(self, layer, tables, k, v):
        super().write(layer, tables, v, k)


class KeepsTheCount(Plain):
    """Goes by its own count of the tokens at an address, where another session's table may lie by then."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.known = Counter()

    def slot(self, table):
        self.known[id(table)] = max(self.known[id(table)], table.num_tokens)
        return self.known[id(table)] % self.kv.block_size


class SwallowsExhaustion(Plain):
    def make_room(self, tables):
        if self.kv.can_append(tables):
            super().make_room(tables)


class LeaksTheOriginal(Plain):
    def make_room(self, tables):
        for table in tables:
            shared = table and table.num_tokens % self.kv.block_size and self.kv.info(table[-1]).owners > 1
            if shared:
                source, table[-1] = table[-1], self.kv.allocate_block()
                self.copy(source, table[-1])
        super().make_room(tables)


class ReordersItsInputs(Plain):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions, keys, values)
        sessions.reverse()


WRONG = {
    NoCopy: Cause.COW_PARTIAL,
    CopiesKeysAlone: Cause.COW_PARTIAL,
    CopiesLayerZeroAlone: Cause.COW_PARTIAL,
    CopiesTheOtherWay: Cause.COW_PARTIAL,
    CountsInEachLayer: Cause.BOOKS_WRONG,
    ForgetsToCount: Cause.BOOKS_WRONG,
    ForgetsRoom: Cause.ROLLOVER_MISSED,
    WritesIntoShared: Cause.COW_MISSED,
    FirstBlock: Cause.WRONG_BLOCK,
    SlotBehind: Cause.WRONG_SLOT,
    LayerBefore: Cause.WRONG_LAYER,
    Swaps: Cause.K_V_SWAPPED,
    SwallowsExhaustion: Cause.ROLLOVER_MISSED,
    LeaksTheOriginal: Cause.BOOKS_WRONG,
    ReordersItsInputs: Cause.INPUTS_CHANGED,
}


def met(part):
    """The faults of a part, scenario by scenario."""
    faults = []
    for scenario in WORLD.scenarios:
        try:
            scenario.story(WORLD.oracle(Learner(part, WORLD.called_with), scenario.sizes))
        except PartIsWrong as wrong:
            faults.append(wrong.fault)
    return faults


@pytest.mark.parametrize("part", [lesson("062").after.kv_append, Plain, ByHand, LooksUpOnce], ids=lambda p: p.__name__)
def test_a_right_part_lives_through_every_story(part):
    assert met(part) == []


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_with_its_cause(part):
    counted = Counter(fault.cause for fault in met(part))
    assert counted.most_common(1)[0][0] is WRONG[part], counted


def test_what_is_kept_of_a_session_that_has_gone_is_found():
    assert met(KeepsTheCount)
