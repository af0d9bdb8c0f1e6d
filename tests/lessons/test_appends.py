"""The appends and copies of all lessons against a dense oracle, and from when on their kernels run."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import LESSONS, EngineConfig, KVCacheExhausted, lesson
from rosecourse.decode import step as best
from rosecourse.decode.inputs import DecodeInputs
from rosecourse.kernels import kv_append_by_table, kv_append_triton, kv_append_triton_full_batch
from rosecourse.kv.blocks import Copy
from rosecourse.lessons import l061, l062
from rosecourse.measure.counters import watch
from tests.support.layouts import layout_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
L, H, D = 2, 2, 4
MAX_BLOCKS = 32


APPENDING = attrgetter("cache", "kv_append", "copy_blocks")
# Parts, and from how many sessions on a kernel appends: of each lesson that changes an append, a copy or the cache.
RUNGS = {rung.number: (rung.after, 128) for rung in LESSONS if APPENDING(rung.before) != APPENDING(rung.after)}
RUNGS |= {f"{number}-triton": (lesson(number).after, 1) for number in ("061", "062", "063", "065")}
RUNGS["035"] = lesson("035").after, 128
PLACED = [name for name, (parts, _) in RUNGS.items() if parts.copy_blocks is not None]


@dataclass
class Session:
    """A table, and what it should hold: K and V [2, L, tokens, H, D]."""

    table: Any
    dense: torch.Tensor
    block_ids_per_layer = property(lambda self: self.table)


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


ONE_TABLE = [rung for rung in RUNGS if rung >= "062"]
each_rung = pytest.mark.parametrize("rung", RUNGS)


@each_rung
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_rung_equals_a_dense_oracle(rung, data):
    """Sessions of random lengths, forks and frees between steps of random batches, in pools that run dry."""
    size = data.draw(st.sampled_from([1, 2, 4]), "block size")
    world = World(rung, size, data.draw(st.sampled_from([12, 400]), "blocks"))
    for length in data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5), "lengths"):
        if -(-length // size) <= world.kv.num_available():
            world.start(length)
        else:
            with pytest.raises(KVCacheExhausted):
                world.kv.allocate(length)
    for _ in range(data.draw(st.integers(1, 3 if rung.endswith("triton") else 8), "steps")):
        action = data.draw(st.sampled_from(["step", "step", "step", "fork", "free"]))
        chosen = data.draw(st.lists(st.integers(0, len(world.sessions) - 1), min_size=1, unique=True), "batch")
        batch = [world.sessions[i] for i in chosen]
        if action == "step":
            step_or_find_no_block(world, batch, rung in ONE_TABLE)
        elif action == "fork":
            world.fork(batch[0])
        elif len(world.sessions) > 1:
            world.free(chosen[0])
        world.check()


def step_or_find_no_block(world, batch, one_table):
    """Blocks are foretold. With one table for all layers a step that finds none changes nothing."""
    tables, had = [session.table for session in batch], world.kv.num_available()
    needed = world.kv.blocks_to_append(tables if one_table else [table[0] for table in tables])
    assert world.kv.can_append(tables) is (needed <= had)
    if needed <= had:
        world.step(batch)
        assert world.kv.num_available() == had - needed
    elif one_table:
        with pytest.raises(KVCacheExhausted):
            world.append(batch, world.tokens(len(batch)))


@each_rung
def test_positions_0_to_the_last_in_one_batch(rung):
    """Hazard 27: slot 0 of the first block, the last slots of a block, slot 0 of another, the last slot of all."""
    world = World(rung, num_blocks=100)
    world.step([world.start(n) for n in (0, 1, 3, 4, 5, 7, 8, 126, 127)])


# -- gates and copies ---------------------------------------------------------------------------------------------

KERNELS = [
    (l061, kv_append_triton),
    (l061, kv_append_triton_full_batch),
    (l062, kv_append_triton),
    (l062, kv_append_triton_full_batch),
    (best, kv_append_by_table),
]


GATES = [  # lengths, from how many sessions on a kernel appends, and one for equal positions; the kernel at 061, at 062
    ([5, 5], 1, 1, *[kv_append_triton_full_batch] * 2),
    ([5, 5], 3, 2, *[kv_append_triton_full_batch] * 2),
    ([5, 6], 2, 2, *[kv_append_triton] * 2),
    ([5, 6], 3, 1, None, None),
    ([5, 5], 3, 3, None, None),
    ([5, 5], 2, 3, kv_append_triton, None),
]
CASES = [("061-triton", *gate, kernel) for *gate, kernel, _ in GATES]
CASES += [("062-triton", *gate, kernel) for *gate, _, kernel in GATES]
CASES += [("063-triton", [5, 8], 2, 2, kv_append_by_table), ("063-triton", [5, 8], 3, 3, None)]


@pytest.mark.parametrize(("rung", "lengths", "min_batch", "full_min_batch", "kernel"), CASES)
def test_a_kernel_appends_from_so_many_sessions_on(monkeypatch, rung, lengths, min_batch, full_min_batch, kernel):
    world = World(rung)
    world.kv_append.min_batch, world.kv_append.full_batch_min_batch = min_batch, full_min_batch
    used = []
    for module, real in KERNELS:
        monkeypatch.setattr(module, real.__name__, lambda *args, real=real: (used.append(real), real(*args)))
    world.step([world.start(n) for n in lengths])
    assert used == ([kernel] * L if kernel else [])


@pytest.mark.parametrize("rung", ["063", "065"])
@pytest.mark.parametrize("pairs", [[], [(3, 0)], [(3, 0), (3, 5)], [(1, 2), (4, 0), (1, 6), (7, 5)]])
def test_blocks_are_copied_in_all_layers_and_no_others(rung, pairs):
    world = World(rung, num_blocks=8)
    pool = torch.arange(2 * world.kv.keys.numel(), dtype=torch.float32, device=DEVICE).view(2, *world.kv.keys.shape)
    expected = pool.clone()
    for source, destination in pairs:
        expected[:, :, destination] = expected[:, :, source].clone()
    world.kv.keys.copy_(pool[0])
    world.kv.values.copy_(pool[1])
    with watch() as seen:
        world.copy_blocks([Copy(*pair) for pair in pairs])
    assert torch.equal(torch.stack([world.kv.keys, world.kv.values]), expected)
    # 065: all blocks in one operation for K and one for V
    assert seen.operations["copy_"] + seen.operations["index_put_"] == 2 * (
        len(pairs) if rung == "063" else bool(pairs)
    )
