"""Parts of lesson 062: right ones, wrong ones with their causes, and those with and without the idea of the lesson."""

from collections import Counter

import torch

from rosecourse.kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from rosecourse.kv.buffers import index_tensor


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


class CopiesASlot(Plain):
    def copy(self, source, destination):
        for cache in (self.kv.keys, self.kv.values):
            cache[:, destination, :, :1] = cache[:, source, :, :1]


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


WRONG = (
    NoCopy,
    CopiesASlot,
    CopiesKeysAlone,
    CopiesLayerZeroAlone,
    CopiesTheOtherWay,
    CountsInEachLayer,
    ForgetsToCount,
    ForgetsRoom,
    WritesIntoShared,
    FirstBlock,
    SlotBehind,
    LayerBefore,
    Swaps,
    SwallowsExhaustion,
    LeaksTheOriginal,
    ReordersItsInputs,
)


# -- with the idea of the lesson, and without it ----------------------------------------------------------------------


class Once(Plain):
    """A tensor for each list, and the kernels of lesson 061 from their thresholds on."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        never = float("inf")
        self.any_from = config.triton_kv_append_min_batch if triton_runs_on(kv.device) else never
        self.level_from = self.any_from
        if config.triton_kv_append_full_batch_min_batch and triton_runs_on(kv.device):
            self.level_from = config.triton_kv_append_full_batch_min_batch

    def __call__(self, sessions, keys, values):
        tables = [session.table for session in sessions]
        self.make_room(tables)
        write = self.writing(tables)
        for caches in zip(self.kv.k_layers, self.kv.v_layers, keys, values, strict=True):
            write(*caches)
        self.count(tables)

    def writing(self, tables):
        blocks, slots = [self.block(table) for table in tables], [self.slot(table) for table in tables]
        sent, n = index_tensor(blocks, self.kv.device), len(tables)
        if len(set(slots)) == 1 and n >= self.level_from:
            return lambda *layer: kv_append_triton_full_batch(*layer, sent, slots[0])
        at = index_tensor(slots, self.kv.device)
        if len(set(slots)) > 1 and n >= self.any_from:
            rows = index_tensor(list(range(n)), self.kv.device)
            return lambda *layer: kv_append_triton(*layer, rows, sent, at)
        return lambda *layer: self.store(sent, at, *layer)

    def store(self, blocks, slots, k_layer, v_layer, k, v):
        k_layer[blocks, :, slots] = k
        v_layer[blocks, :, slots] = v


class CopiesTogether(Once):
    """All copies of a step in one operation."""

    def make_room(self, tables):
        copies = self.kv.place(tables)
        if copies:
            sources, destinations = (index_tensor(list(ids), self.kv.device) for ids in zip(*copies, strict=True))
            self.copy(sources, destinations)


class OneStore(CopiesTogether):
    """All layers of K in one store, and those of V, where no kernel writes."""

    def __call__(self, sessions, keys, values):
        tables = [session.table for session in sessions]
        if len(tables) >= min(self.any_from, self.level_from):
            super().__call__(sessions, keys, values)
            return
        self.make_room(tables)
        blocks = index_tensor([self.block(table) for table in tables], self.kv.device)
        slots = index_tensor([self.slot(table) for table in tables], self.kv.device)
        self.kv.keys[:, blocks, :, slots] = torch.stack(keys, 1)
        self.kv.values[:, blocks, :, slots] = torch.stack(values, 1)
        self.count(tables)


class CopiesByLayer(Once):
    def copy(self, source, destination):
        for cache in (*self.kv.k_layers, *self.kv.v_layers):
            cache[destination] = cache[source]


class ForgetsTheKernels(Once):
    def writing(self, tables):
        self.any_from = self.level_from = float("inf")
        return super().writing(tables)


class LaunchesAlways(Once):
    def writing(self, tables):
        self.any_from = self.level_from = 1
        return super().writing(tables)


class TakesTheGeneralKernel(Once):
    """And gives it the slots of a step before, if the batch is as large."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.known = {}

    def writing(self, tables):
        if len(tables) < self.any_from:
            return super().writing(tables)
        slots = self.known.setdefault(len(tables), [self.slot(table) for table in tables])
        lists = [list(range(len(tables))), [self.block(table) for table in tables], slots]
        sent = index_tensor(lists, self.kv.device)
        return lambda *layer: kv_append_triton(*layer, *sent)
