"""The appends and copies of all lessons against a dense oracle, and what each lesson takes away."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import KVCacheExhausted
from rosecourse.decode import step as best
from rosecourse.kernels import kv_append_by_table, kv_append_triton, kv_append_triton_full_batch
from rosecourse.kv.blocks import Copy
from rosecourse.lessons import l061, l062
from rosecourse.measure.counters import watch
from tests.lessons.worlds import DEVICE, PLACED, RUNGS, L, World

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


# -- what a lesson takes away -------------------------------------------------------------------------------------


def operations(rung, lengths, forks=0):
    """The torch operations of one append over sessions of these lengths, the first of them forked so many times."""
    world = World(rung)
    batch = [world.start(n) for n in lengths]
    batch += [world.fork(batch[0]) for _ in range(forks)]
    kv_new = world.tokens(len(batch))
    append = world.append
    if rung in PLACED:
        world.kv.place([session.table for session in batch])
        inputs = world.inputs(batch)

        def append(batch, kv_new):
            into = world.kv_append(inputs)
            for layer in range(L):
                into(layer, *kv_new[:, layer])

    with watch() as seen:
        append(batch, kv_new)
    return seen.operations


INSIDE, AT_BOUNDARIES, EQUAL = [5, 6, 7, 9], [4, 8, 3, 5], [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("rung", "lengths", "selects", "tensors", "puts"),
    [
        ("059", EQUAL, 2 * L, 3 * L, 2 * L),
        ("060", EQUAL, 0, L, 2 * L),
        ("061", EQUAL, 0, L, 2 * L),
        *(("062", lengths, None, 1, 2 * L) for lengths in (INSIDE, AT_BOUNDARIES, EQUAL)),
        *(("063", lengths, 0, 0, 2 * L) for lengths in (INSIDE, AT_BOUNDARIES, EQUAL)),
        ("065-triton", INSIDE, 0, 0, 0),
    ],
)
def test_selects_tensors_and_writes_of_an_append(rung, lengths, selects, tensors, puts):
    seen = operations(rung, lengths)
    assert (seen["from_list"], seen["index_put_"]) == (tensors, puts)
    assert selects is None or seen["index_select"] == selects


KERNELS = [
    (l061, kv_append_triton),
    (l061, kv_append_triton_full_batch),
    (l062, kv_append_triton),
    (l062, kv_append_triton_full_batch),
    (best, kv_append_by_table),
]


@pytest.mark.parametrize(
    ("rung", "lengths", "min_batch", "full_min_batch", "kernel"),
    [
        *(
            (rung, *case)
            for rung in ("061-triton", "062-triton")
            for case in (
                ([5, 5], 1, 1, kv_append_triton_full_batch),
                ([5, 5], 3, 2, kv_append_triton_full_batch),
                ([5, 6], 2, 2, kv_append_triton),
                ([5, 6], 3, 1, None),
                ([5, 5], 3, 3, None),
            )
        ),
        ("061-triton", [5, 5], 2, 3, kv_append_triton),
        ("062-triton", [5, 5], 2, 3, None),
        ("063-triton", [5, 8], 2, 2, kv_append_by_table),
        ("063-triton", [5, 8], 3, 3, None),
    ],
)
def test_from_how_many_sessions_on_a_kernel_appends(monkeypatch, rung, lengths, min_batch, full_min_batch, kernel):
    world = World(rung)
    world.kv_append.min_batch, world.kv_append.full_batch_min_batch = min_batch, full_min_batch
    used = []
    for module, real in KERNELS:
        monkeypatch.setattr(module, real.__name__, lambda *args, real=real: (used.append(real), real(*args)))
    world.step([world.start(n) for n in lengths])
    assert used == ([kernel] * L if kernel else [])


# -- 063 and 065: copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", ["063", "065"])
@pytest.mark.parametrize("pairs", [[], [(3, 0)], [(3, 0), (3, 5)], [(1, 2), (4, 0), (1, 6), (7, 5)]])
def test_blocks_are_copied_in_all_layers_and_no_others_change(rung, pairs):
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
