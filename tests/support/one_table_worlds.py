"""The parts of lessons from 062 on over a cache of their own, beside a dense copy of what each session should hold."""

from types import SimpleNamespace

import torch

from rosecourse import LESSONS, EngineConfig, lesson
from rosecourse.decode.inputs import DecodeInputs
from rosecourse.kv.blocks import KVBlockManager
from tests.support.one_table import copy, read, write

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
L, H, D = 2, 2, 4
MAX_BLOCKS = 32

# Parts, and from how many sessions on a kernel appends.
RUNGS = {rung.number: (rung.after, 128) for rung in LESSONS if rung.number >= "062"} | {
    f"{number}-triton": (lesson(number).after, 1) for number in ("062", "063", "065")
}


class World:
    """Sessions over a pool whose slots are NaN until they are written."""

    def __init__(self, rung: str, block_size: int = 4, num_blocks: int = 64) -> None:
        self.parts, min_batch = RUNGS[rung]
        shape = {"num_layers": L, "num_kv_heads": H, "head_dim": D, "block_size": block_size, "num_blocks": num_blocks}
        self.kv = KVBlockManager(dtype=torch.float32, device=DEVICE, **shape)
        for cache in (self.kv.keys, self.kv.values):
            cache.fill_(float("nan"))
        self.config = EngineConfig(block_size=block_size, triton_kv_append_min_batch=min_batch)
        self.kv_append = self.parts.kv_append(None, self.kv, self.config)
        self.sessions: list[SimpleNamespace] = []
        self.count = 0

    def tokens(self, n: int) -> torch.Tensor:
        """K and V [2, L, n, H, D], another value at every place, every time; as views of a fused projection."""
        size = L * n * 3 * H * D
        fused = torch.arange(self.count, self.count + size, dtype=torch.float32, device=DEVICE).view(L, n, 3, H, D)
        self.count += size
        return fused[:, :, 1:].permute(2, 0, 1, 3, 4)

    def add(self, table, dense: torch.Tensor) -> SimpleNamespace:
        self.sessions.append(SimpleNamespace(table=table, dense=dense))
        return self.sessions[-1]

    def start(self, length: int) -> SimpleNamespace:
        table, kv_new = self.kv.allocate(length), self.tokens(length)
        write(self.kv, table, 0, kv_new)
        return self.add(table, kv_new)

    def fork(self, parent: SimpleNamespace) -> SimpleNamespace:
        return self.add(self.kv.share(parent.table), parent.dense)

    def free(self, number: int) -> None:
        self.kv.free(self.sessions.pop(number).table)

    def step(self, batch: list[SimpleNamespace]) -> None:
        kv_new = self.tokens(len(batch))
        self.append(batch, kv_new)
        for b, session in enumerate(batch):
            session.dense = torch.cat([session.dense, kv_new[:, :, b : b + 1]], dim=2)
        self.check()

    def append(self, batch: list[SimpleNamespace], kv_new: torch.Tensor) -> None:
        """Lesson 062: the part does it all."""
        self.kv_append(batch, list(kv_new[0]), list(kv_new[1]))

    def check(self) -> None:
        """Owner counts are exact, and everybody reads through the table what they appended."""
        self.kv.audit([session.table for session in self.sessions])
        for session in self.sessions:
            assert session.table.num_tokens == session.dense.shape[2]
            assert len(session.table) == -(-session.table.num_tokens // self.kv.block_size)
            assert torch.equal(read(self.kv, session.table), session.dense.cpu())


class PlacedWorld(World):
    """Lessons from 063 on: place, copy, then append by the tables, layer by layer."""

    def __init__(self, rung: str, **sizes: int) -> None:
        super().__init__(rung, **sizes)
        self.copy_blocks = self.parts.copy_blocks(None, self.kv, self.config)

    def inputs(self, batch: list[SimpleNamespace]) -> DecodeInputs:
        """The tables as the rung has them: int32 where a part makes them for each step, int64 where they stay."""
        tables = [session.table for session in batch]
        dtype = torch.int32 if self.parts.rows is None else torch.int64
        rows = torch.tensor([table + [0] * (MAX_BLOCKS - len(table)) for table in tables], dtype=dtype, device=DEVICE)
        positions = torch.tensor([table.num_tokens for table in tables], device=DEVICE)
        return DecodeInputs(positions, positions, int(positions.max()), rows.expand(L, -1, -1), batch)

    def place(self, batch: list[SimpleNamespace]) -> None:
        """The copies are those that `place` asks for, and equal to copies that are made one number at a time."""
        tables = [session.table for session in batch]
        copies = self.kv.place(tables)
        before = self.pool()
        self.copy_blocks(copies)
        found = self.pool()
        self.restore(before)
        copy(self.kv, copies)
        assert torch.equal(self.pool(), found)

    def pool(self) -> torch.Tensor:
        """K and V as integers of the same bits, so that NaN equals itself; a copy."""
        return torch.stack([self.kv.keys, self.kv.values]).view(torch.int32)

    def restore(self, pool: torch.Tensor) -> None:
        for cache, was in zip((self.kv.keys, self.kv.values), pool.view(torch.float32), strict=True):
            cache.copy_(was)

    def append(self, batch: list[SimpleNamespace], kv_new: torch.Tensor) -> None:
        self.place(batch)
        append = self.kv_append(self.inputs(batch))
        for layer in range(L):
            append(layer, kv_new[0, layer], kv_new[1, layer])
        for session in batch:
            session.table.num_tokens += 1


def world_of(rung: str, **sizes: int) -> World:
    return (World if rung < "063" else PlacedWorld)(rung, **sizes)
