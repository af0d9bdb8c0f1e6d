"""The appends and copies of the rungs from 062 on against a dense oracle, and each lesson's own point."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import KVCacheExhausted
from rosecourse.decode import step as by_table
from rosecourse.decode.step import kv_append_by_table
from rosecourse.kernels import kv_append_triton, kv_append_triton_full_batch
from rosecourse.kv.blocks import Copy
from rosecourse.lessons import l062
from rosecourse.measure.counters import watch
from tests.support.one_table_worlds import DEVICE, RUNGS, L, world_of

pytestmark = pytest.mark.grid

PLACED = [rung for rung in RUNGS if rung >= "063"]
each_rung = pytest.mark.parametrize("rung", RUNGS)


@each_rung
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_rung_equals_a_dense_oracle(rung, data):
    """Sessions of random lengths, forks and frees between steps of random batches."""
    world = world_of(rung, block_size=data.draw(st.sampled_from([1, 2, 4]), "block size"), num_blocks=400)
    for length in data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5), "lengths"):
        world.start(length)
    for _ in range(data.draw(st.integers(1, 8), "steps")):
        action = data.draw(st.sampled_from(["step", "step", "step", "fork", "free"]))
        chosen = data.draw(st.lists(st.integers(0, len(world.sessions) - 1), min_size=1, unique=True), "batch")
        if action == "step":
            world.step([world.sessions[i] for i in chosen])
        elif action == "fork":
            world.fork(world.sessions[chosen[0]])
        elif len(world.sessions) > 1:
            world.free(chosen[0])
        world.check()


@each_rung
def test_two_sessions_that_share_a_full_block_each_get_a_block_of_their_own(rung):
    world = world_of(rung)
    parent = world.start(4)
    child = world.fork(parent)
    full = parent.table[0]
    world.step([parent, child])
    (a0, a1), (b0, b1) = parent.table, child.table
    assert a0 == b0 == full
    assert a1 != b1
    assert [world.kv.info(block).owners for block in (a0, a1, b1)] == [2, 1, 1]


@each_rung
@pytest.mark.parametrize("same_position", [True, False])
@pytest.mark.parametrize("forked", [True, False])
def test_equal_and_mixed_positions_with_and_without_forks(rung, same_position, forked):
    world = world_of(rung)
    batch = [world.start(n) for n in ([5, 5, 5] if same_position else [5, 6, 1])]
    if forked:
        batch.insert(1, world.fork(batch[1]))
        batch.append(world.fork(batch[1]))
    for _ in range(5):
        world.step(batch)


@each_rung
def test_positions_0_to_the_last_in_one_batch(rung):
    """Hazard 27: slot 0 of the first block, the last slots of a block, slot 0 of another, the last slot of all."""
    world = world_of(rung, num_blocks=100)
    world.step([world.start(n) for n in (0, 1, 3, 4, 5, 7, 8, 126, 127)])


@each_rung
def test_an_exhausted_pool_writes_nothing(rung):
    world = world_of(rung, num_blocks=3)
    batch = [world.start(3), world.start(4), world.start(2)]
    batch.append(world.fork(batch[0]))
    with pytest.raises(KVCacheExhausted):
        world.append(batch, world.tokens(4))
    world.check()


# -- 062 ----------------------------------------------------------------------------------------------------------


def operations_of(rung, lengths, forks=0):
    """The torch operations of one append over sessions of these lengths, the first of them forked so many times."""
    world = world_of(rung)
    batch = [world.start(n) for n in lengths]
    batch += [world.fork(batch[0]) for _ in range(forks)]
    kv_new = world.tokens(len(batch))
    with watch() as seen:
        world.kv_append(batch, list(kv_new[0]), list(kv_new[1]))
    return seen.operations


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [5, 6, 7, 9], [4, 8, 3, 5]])
def test_lesson_062_builds_one_tensor_for_all_layers(lengths):
    counts = operations_of("062", lengths)
    assert (counts["from_list"], counts["index_put_"]) == (1, 2 * L)


@pytest.mark.parametrize("number", ["062", "062-triton"])
def test_lesson_062_copies_a_block_of_all_layers_at_once(number):
    assert operations_of(number, [5, 6], forks=2)["copy_"] - operations_of(number, [5, 6])["copy_"] == 2 * 2


@pytest.mark.parametrize(
    ("lengths", "min_batch", "full_min_batch", "kernel"),
    [
        ([5, 5], 1, None, "kv_append_triton_full_batch"),
        ([5, 5], 3, 2, "kv_append_triton_full_batch"),
        ([5, 5], 2, 3, None),
        ([5, 6], 2, None, "kv_append_triton"),
        ([5, 6], 3, 1, None),
        ([5, 5], 3, None, None),
    ],
)
def test_the_gates_of_lesson_062(monkeypatch, lengths, min_batch, full_min_batch, kernel):
    world = world_of("062-triton")
    world.kv_append.min_batch, world.kv_append.full_batch_min_batch = min_batch, full_min_batch or min_batch
    used = []
    for real in (kv_append_triton, kv_append_triton_full_batch):
        name = real.__name__
        monkeypatch.setattr(l062, name, lambda *args, name=name, real=real: (used.append(name), real(*args)))
    world.step([world.start(n) for n in lengths])
    assert used == ([kernel] * L if kernel else [])


# -- 063 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", PLACED)
@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [5, 6, 7, 9], [4, 8, 3, 5]])
def test_from_lesson_063_on_an_append_builds_no_tensor_from_a_list(rung, lengths):
    world = world_of(rung)
    batch = [world.start(n) for n in lengths]
    world.place(batch)
    inputs, kv_new = world.inputs(batch), world.tokens(len(batch))
    with watch() as seen:
        append = world.kv_append(inputs)
        for layer in range(L):
            append(layer, kv_new[0, layer], kv_new[1, layer])
    assert seen.operations["from_list"] == seen.operations["index_select"] == 0
    assert seen.operations["index_put_"] == (0 if rung.endswith("triton") else 2 * L)


@pytest.mark.parametrize(("min_batch", "launches"), [(1, L), (2, L), (3, 0)])
def test_the_gate_of_lesson_063(monkeypatch, min_batch, launches):
    world = world_of("063-triton")
    world.kv_append.min_batch = min_batch
    used = []
    monkeypatch.setattr(by_table, "kv_append_by_table", lambda *args: (used.append(args), kv_append_by_table(*args)))
    world.step([world.start(5), world.start(8)])
    assert len(used) == launches


# -- 063 and 065: copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", PLACED)
@pytest.mark.parametrize("pairs", [[], [(3, 0)], [(3, 0), (3, 5)], [(1, 2), (4, 0), (1, 6), (7, 5)]])
def test_blocks_are_copied_in_all_layers_and_no_others_change(rung, pairs):
    world = world_of(rung, num_blocks=8)
    for number, cache in enumerate((world.kv.keys, world.kv.values)):
        cache.copy_(torch.arange(cache.numel(), device=DEVICE).view(cache.shape) + 0.5 * number)
    expected = world.pool().clone()
    for source, destination in pairs:
        expected[:, :, destination] = expected[:, :, source].clone()
    world.copy_blocks([Copy(*pair) for pair in pairs])
    assert torch.equal(world.pool(), expected)


@pytest.mark.parametrize("copies", [0, 1, 5])
def test_lesson_065_copies_all_blocks_in_one_operation_for_k_and_one_for_v(copies):
    found = {}
    for rung in ("063", "065"):
        world = world_of(rung)
        with watch() as seen:
            world.copy_blocks([Copy(0, destination) for destination in range(1, copies + 1)])
        found[rung] = seen.operations["copy_"] + seen.operations["index_put_"]
    assert found == {"063": 2 * copies, "065": 2 if copies else 0}
