"""The append of each lesson over a cache of its own, beside a dense copy of what each session should hold."""

import torch

from rosecourse import LESSONS, EngineConfig, lesson
from rosecourse.decode.inputs import DecodeInputs
from tests.support.layouts import layout_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
L, H, D = 2, 2, 4
MAX_BLOCKS = 32


def appending(parts):
    return parts.cache, parts.kv_append, parts.copy_blocks


# Parts, and from how many sessions on a kernel appends: of each lesson that changes an append, a copy or the cache.
RUNGS = {rung.number: (rung.after, 128) for rung in LESSONS if appending(rung.before) != appending(rung.after)}
RUNGS |= {f"{number}-triton": (lesson(number).after, 1) for number in ("061", "062", "063", "065")}
RUNGS["035"] = lesson("035").after, 128
PLACED = [name for name, (parts, _) in RUNGS.items() if parts.copy_blocks is not None]


class Session:
    """A table, and what it should hold: K and V [2, L, tokens, H, D]."""

    def __init__(self, table, dense):
        self.table, self.dense = table, dense

    @property
    def block_ids_per_layer(self):
        return self.table


class World:
    """Sessions over a pool whose slots are NaN until they are written."""

    def __init__(self, rung, block_size=4, num_blocks=64):
        self.parts, min_batch = RUNGS[rung]
        sizes = {"num_layers": L, "num_kv_heads": H, "head_dim": D, "block_size": block_size, "num_blocks": num_blocks}
        self.kv = self.parts.cache(dtype=torch.float32, device=DEVICE, **sizes)
        self.layout = layout_of(self.kv)
        for cache in (self.kv.keys, self.kv.values):
            cache.fill_(float("nan"))
        config = EngineConfig(block_size=block_size, triton_kv_append_min_batch=min_batch)
        self.kv_append = self.parts.kv_append(None, self.kv, config)
        self.copy_blocks = self.parts.copy_blocks(None, self.kv, config) if rung in PLACED else None
        self.sessions, self.count = [], 0

    def tokens(self, n):
        """K and V [2, L, n, H, D], another value at every place, every time; as views of a fused projection."""
        size = L * n * 3 * H * D
        fused = torch.arange(self.count, self.count + size, dtype=torch.float32, device=DEVICE).view(L, n, 3, H, D)
        self.count += size
        return fused[:, :, 1:].permute(2, 0, 1, 3, 4)

    def add(self, table, dense):
        self.sessions.append(Session(table, dense))
        return self.sessions[-1]

    def start(self, length):
        table, kv_new = self.kv.allocate(length), self.tokens(length)
        positions = torch.arange(length, device=DEVICE)
        for layer, blocks in enumerate(self.layout.lists(table)):
            rows = torch.tensor(blocks, dtype=torch.int64, device=DEVICE)[positions // self.kv.block_size]
            self.kv.write_tokens(layer, rows, positions % self.kv.block_size, *kv_new[:, layer])
        return self.add(table, kv_new)

    def fork(self, parent):
        return self.add(self.kv.share(parent.table), parent.dense)

    def free(self, number):
        self.kv.free(self.sessions.pop(number).table)

    def step(self, batch):
        kv_new = self.tokens(len(batch))
        self.append(batch, kv_new)
        for b, session in enumerate(batch):
            session.dense = torch.cat([session.dense, kv_new[:, :, b : b + 1]], dim=2)
        self.check()

    def append(self, batch, kv_new):
        """Up to lesson 062 the part does it all; from 063 on place, copy, then append by the tables, layer by layer."""
        if self.copy_blocks is None:
            self.kv_append(batch, *map(list, kv_new))
            return
        self.copy_blocks(self.kv.place([session.table for session in batch]))
        append = self.kv_append(self.inputs(batch))
        for layer in range(L):
            append(layer, *kv_new[:, layer])
        for session in batch:
            session.table.num_tokens += 1

    def inputs(self, batch):
        """The tables as the rung has them: int32 where a part makes them for each step, int64 where they stay."""
        tables = [session.table for session in batch]
        dtype = torch.int32 if self.parts.rows is None else torch.int64
        rows = torch.tensor([table + [0] * (MAX_BLOCKS - len(table)) for table in tables], dtype=dtype, device=DEVICE)
        positions = torch.tensor([table.num_tokens for table in tables], device=DEVICE)
        return DecodeInputs(positions, positions, int(positions.max()), rows.expand(L, -1, -1), batch)

    def check(self):
        """Owner counts are exact, and each session reads through its table what it has appended."""
        self.kv.audit([session.table for session in self.sessions])
        for session in self.sessions:
            length = session.dense.shape[2]
            self.layout.check_filled(session.table, length)
            for layer, blocks in enumerate(self.layout.lists(session.table)):
                assert len(blocks) == -(-length // self.kv.block_size)
                for caches, dense in zip((self.kv.keys, self.kv.values), session.dense, strict=True):
                    held = caches[layer, blocks].transpose(1, 2).flatten(0, 1)[:length]
                    assert torch.equal(held, dense[layer])
