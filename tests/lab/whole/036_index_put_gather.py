# right
import weakref

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class Slot:
    def __init__(self, arena):
        self.number = arena.take()
        self.sizes = [0] * arena.layers
        self.lasts = [-1] * arena.layers
        weakref.finalize(self, arena.give_back, self.number)


class Arena:
    def __init__(self, layers, width):
        self.layers, self.free = (layers, [])
        self.rows = torch.zeros(0, layers, width, dtype=torch.int32)

    def take(self):
        if not self.free:
            have = len(self.rows)
            more = torch.zeros(max(have, 4), *self.rows.shape[1:], dtype=torch.int32)
            self.rows = torch.cat([self.rows, more])
            self.free.extend(range(have, len(self.rows)))
        number = self.free.pop()
        self.rows[number] = 0
        return number

    def give_back(self, number):
        self.free.append(number)


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.arena = Arena(kv.num_layers, self.max_blocks)
        self.numbers = torch.zeros(config.max_batch_size, dtype=torch.int64)

    def __call__(self, sessions):
        for b, session in enumerate(sessions):
            self.numbers[b] = self.slot_of(session.block_ids_per_layer)
        chosen = self.arena.rows.index_select(0, self.numbers[: len(sessions)])
        self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks).copy_(chosen.transpose(0, 1))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def slot_of(self, table):
        if table.row_cache is None:
            table.row_cache = Slot(self.arena)
        slot = table.row_cache
        for lay, ids in enumerate(table):
            if ids and (slot.sizes[lay] != len(ids) or slot.lasts[lay] != ids[-1]):
                columns = range(max(slot.sizes[lay] - 1, 0), len(ids))
                values = torch.tensor([ids[c] - lay * self.kv.num_blocks for c in columns], dtype=torch.int32)
                where = (torch.tensor(slot.number), torch.tensor(lay), torch.tensor(columns))
                self.arena.rows.index_put_(where, values)
                slot.sizes[lay], slot.lasts[lay] = (len(ids), ids[-1])
        return slot.number
