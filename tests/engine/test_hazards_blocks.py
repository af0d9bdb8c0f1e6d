"""Hazards of blocks: who owns them, who gets them, and that a call that gets none has changed nothing."""

import pytest
import torch

from rosecourse import BlockError, KVCacheExhausted
from tests.support.hazards import BS, Driver, assert_holds_its_own, each_rung
from tests.support.layouts import OneTable
from tests.support.oracles import hf_greedy, prompts_of

pytestmark = pytest.mark.grid


@each_rung
def test_double_free_and_a_stale_holder_leave_the_new_owner_alone(small_pair, rung):
    """Hazard 1: one list is freed twice, and by a stale holder after its blocks went to someone else."""
    hf, model = small_pair
    driver = Driver(model, rung, num_blocks=4)
    first, _ = driver.start_lengths(6, 5)
    stale = first.block_ids_per_layer
    copied = driver.layout.copy(stale)
    held = driver.layout.lists(stale)
    driver.free(first)
    with pytest.raises(BlockError, match="freed before"):
        driver.engine.free(first)
    with pytest.raises(BlockError, match="or a copy"):
        driver.kv.free(copied)  # its blocks are nobody's
    (second,) = driver.start_lengths(7)
    assert [set(ids) for ids in driver.layout.lists(second.table)] == [set(ids) for ids in held]
    for _ in range(2):
        with pytest.raises(BlockError, match="freed twice"):
            driver.kv.free(stale)
        driver.check()
    driver.step(second)
    assert_holds_its_own(hf, driver.kv, second)


# -- a failed allocation --------------------------------------------------------------------------------------------


def failing_at(driver, monkeypatch, number):
    """Let the allocation of a block fail at its call `number`, counted from 0; returns the calls."""
    real, calls = driver.kv.allocate_block, []

    def allocate_block(*args):
        calls.append(args)
        if len(calls) == number + 1:
            raise KVCacheExhausted("injected")
        return real(*args)

    monkeypatch.setattr(driver.kv, "allocate_block", allocate_block)
    return calls


def a_batch_that_needs_blocks(driver):
    """Sessions at a block's end, inside a block, three that share a block that is not full: 5 blocks a layer."""
    sessions = driver.start_lengths(4, 6, 8, 4, 2)
    driver.fork(sessions[1], token_id=7)
    driver.fork(sessions[1], token_id=9)
    return 5


def append_one(driver, number, layer):
    """Append a token to one layer of a live session."""
    driver.kv.append_token(layer, driver.live[number].block_ids_per_layer[layer], *torch.ones(2, 2, 8))


# The blocks that a call takes, and the call: beside sessions of 8 and of 6 tokens, the latter with a sibling.
PATHS = {
    "allocate": (2 * 3, lambda driver: driver.kv.allocate(8)),
    "append_token to nothing": (1, lambda driver: driver.kv.append_token(0, [], *torch.ones(2, 2, 8))),
    "append_token to a full block": (1, lambda driver: append_one(driver, 0, layer=1)),
    "append_token to a shared block": (1, lambda driver: append_one(driver, 1, layer=2)),
    "reserve": (4 * 3, lambda driver: driver.engine.reserve(driver.session([3] * 14))),
    "reserve with a hit of two blocks": (2 * 3, lambda driver: driver.engine.reserve(driver.session([5] * 14))),
    "prefill": (2 * 3 * 3, lambda driver: driver.engine.prefill([driver.session([n] * 9) for n in (1, 2)])),
}


ONE_TABLE_PATHS = {
    name: (calls // 3, call) for name, (calls, call) in PATHS.items() if not name.startswith("append_token")
}


@pytest.mark.parametrize(
    ("rung", "path"), [("061", path) for path in PATHS] + [("065", path) for path in ONE_TABLE_PATHS]
)
def test_an_allocation_that_fails_at_any_call_changes_nothing(small_model, monkeypatch, rung, path):
    """Hazard 3: a failure at call k for every k, on every path of the engine and the manager that takes blocks."""
    calls_needed, call = (PATHS if rung == "061" else ONE_TABLE_PATHS)[path]
    driver = Driver(small_model, rung, prefix_cache=True)
    driver.start([5] * 8, [6] * 6)
    driver.fork(driver.live[1])
    before = driver.snapshot()
    for number in range(calls_needed):
        with monkeypatch.context() as patch:
            calls = failing_at(driver, patch, number)
            with pytest.raises(KVCacheExhausted, match="injected"):
                call(driver)
        assert len(calls) == number + 1
        assert driver.snapshot() == before
        driver.check()
    calls = failing_at(driver, monkeypatch, calls_needed)
    call(driver)
    assert len(calls) == calls_needed


@each_rung
def test_a_step_that_lacks_any_number_of_blocks_changes_nothing(small_model, rung):
    """Hazard 3: with 0, 1, 2, ... blocks too few for its batch, a decode step is refused, and not a byte is another."""
    driver = Driver(small_model, rung)
    needed = a_batch_that_needs_blocks(driver)
    for available in range(needed):
        hog = driver.kv.allocate((driver.kv.num_available() - available) * BS)
        before = driver.snapshot()
        with pytest.raises(KVCacheExhausted, match="free or preempt one"):
            driver.engine.decode_step_sessions(driver.live)
        assert driver.snapshot() == before
        driver.kv.free(hog)
    hog = driver.kv.allocate((driver.kv.num_available() - needed) * BS)
    driver.engine.take_tokens(driver.live, driver.engine.decode_step_sessions(driver.live))
    assert driver.kv.num_available() == 0
    driver.kv.free(hog)
    driver.check()


@each_rung
def test_a_step_that_fails_in_its_middle_leaks_nothing(small_pair, monkeypatch, rung):
    """Hazard 3: a failure that nobody could foresee, at call k for every k: freed and computed again, all goes on."""
    hf, model = small_pair
    driver = Driver(model, rung)
    calls_needed = a_batch_that_needs_blocks(driver) * (1 if isinstance(driver.layout, OneTable) else 3)
    known = [list(session.token_ids) for session in driver.live]
    for number in range(calls_needed):
        with monkeypatch.context() as patch:
            failing_at(driver, patch, number)
            with pytest.raises(KVCacheExhausted, match="injected"):
                driver.engine.decode_step_sessions(driver.live)
        for session in driver.live:
            driver.engine.free(session)
        assert driver.kv.num_available() == driver.kv.num_blocks
        driver.check()
        for session in driver.live[:5]:  # as it was before the step: all but the last token computed
            token_id = session.token_ids.pop()
            driver.engine.prefill([session])
            session.token_ids.append(token_id)
        for sibling in driver.live[5:]:
            sibling.table = driver.kv.share(driver.live[1].table)
            sibling.num_cached_tokens = driver.live[1].num_cached_tokens
        driver.check()
    for _ in range(3):
        driver.step()
    expected = hf_greedy(hf, known, 3)
    assert [s.token_ids for s in driver.live] == [k + e for k, e in zip(known, expected, strict=True)]


@each_rung
def test_copy_on_write_with_no_free_block_changes_no_owner_and_works_after_one_free(small_pair, rung):
    """Hazard 4: copy-on-write on an exhausted pool."""
    hf, model = small_pair
    driver = Driver(model, rung, num_blocks=3)
    parent, other = driver.start_lengths(6, 2)
    child = driver.fork(parent, token_id=9)
    before = driver.snapshot()
    for batch in ([child], [parent], [parent, child]):
        with pytest.raises(KVCacheExhausted):
            driver.engine.decode_step_sessions(batch)
        assert driver.snapshot() == before
    driver.free(other)
    driver.step(parent, child)
    for session in (parent, child):
        assert_holds_its_own(hf, driver.kv, session)
        for layer, ids in enumerate(driver.layout.lists(session.table)):
            assert driver.layout.info(layer, ids[-1]).owners == 1


# -- forks ----------------------------------------------------------------------------------------------------------


@each_rung
@pytest.mark.parametrize("leaves", [0, 1, 2, None])
def test_siblings_of_a_partial_block_see_their_own_tokens(small_pair, rung, leaves):
    """Hazard 5: each writes its own K and V into what was shared; whoever leaves first, the parent (0) too."""
    hf, model = small_pair
    driver = Driver(model, rung)
    parent, *_ = driver.start_lengths(6, 3)
    family = [parent, *(driver.fork(parent, token_id) for token_id in (11, 12))]
    if leaves is not None:
        driver.free(family.pop(leaves))
    known = [list(session.token_ids) for session in driver.live]
    for _ in range(4):
        driver.step()
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)
    expected = hf_greedy(hf, known, 4)
    assert [s.token_ids for s in driver.live] == [k + e for k, e in zip(known, expected, strict=True)]


@each_rung
def test_a_fork_at_a_block_boundary_copies_nothing(small_pair, monkeypatch, rung):
    """Hazard 6: the full blocks stay shared, and the next token gets a private block."""
    hf, model = small_pair
    driver = Driver(model, rung)
    (parent,) = driver.start_lengths(2 * BS)
    child = driver.fork(parent, token_id=9)
    if isinstance(driver.layout, OneTable):
        assert driver.kv.place([parent.table, child.table]) == []  # nothing to copy
    else:
        monkeypatch.setattr(driver.kv, "_copy_block", None)  # to call it would raise
    driver.step()
    lists = (driver.layout.lists(session.table) for session in (parent, child))
    for layer, (a, b) in enumerate(zip(*lists, strict=True)):
        assert a[:2] == b[:2]
        assert [driver.layout.info(layer, i).owners for i in (*a, b[2])] == [2, 2, 1, 1]
        assert a[2] != b[2]
    assert_holds_its_own(hf, driver.kv, parent)
    assert_holds_its_own(hf, driver.kv, child)


# -- lengths --------------------------------------------------------------------------------------------------------


@each_rung
@pytest.mark.parametrize("together", [True, False], ids=["one batch", "alone"])
def test_blocks_and_slots_at_every_length(small_pair, rung, together):
    """Hazard 7: prompts of 1, BS - 1, BS, BS + 1, ... tokens, and every length from there to the longest."""
    hf, model = small_pair
    most = 5 * BS
    driver = Driver(model, rung, max_seq_len=most)
    prompts = prompts_of([1, BS - 1, BS, BS + 1, 2 * BS - 1, 2 * BS, 2 * BS + 1, most - 1], 211)
    sessions = [driver.session(prompt, new=most - len(prompt)) for prompt in prompts]
    for batch in [sessions] if together else [[session] for session in sessions]:
        driver.engine.take_tokens(batch, driver.engine.prefill(batch))
        driver.live += batch
        driver.check()
        while running := [session for session in batch if not session.finished]:
            driver.step(*running)
            for session in running:
                assert driver.kv.length(session.table) == len(session.token_ids) - 1
                for ids in driver.layout.lists(session.table):
                    assert len(ids) == -(-(len(session.token_ids) - 1) // BS)
    for session in sessions:
        assert len(session.token_ids) == most
        assert_holds_its_own(hf, driver.kv, session)
