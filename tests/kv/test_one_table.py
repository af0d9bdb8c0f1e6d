"""The KVBlockManager with one table for all layers: case by case; test_one_table_machine.py has the random runs."""

import pytest
import torch

from rosecourse import BlockError, ConfigError, KVCacheExhausted
from rosecourse.kv.blocks import BlockTable, Copy, KVBlockManager
from tests.support.one_table import L, append, broken_pools, make_kv, read, tokens, write


def started(kv, length, tag=1.0):
    """A table of so many tokens, and what it holds."""
    table, kv_new = kv.allocate(length), tokens(length, tag)
    write(kv, table, 0, kv_new)
    return table, kv_new


def books(kv, *tables):
    infos = sorted((block, info.owners, info.cached) for block, info in kv.blocks_in_use.items())
    return infos, list(kv.free_blocks()), [(list(table), table.num_tokens) for table in tables]


# -- place --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "blocks"), [(0, 1), (1, 1), (3, 1), (4, 2), (5, 2), (7, 2), (8, 3)])
def test_place_makes_room_for_one_more_token_once(length, blocks):
    kv = make_kv()
    table, _ = started(kv, length)
    assert kv.place([table]) == []
    assert (len(table), table.num_tokens) == (blocks, length)
    before = books(kv, table)
    assert kv.place([table]) == []
    assert books(kv, table) == before
    kv.audit([table])


def test_place_copies_a_shared_block_once():
    kv = make_kv()
    parent, kv_new = started(kv, 6)
    child = kv.share(parent)
    shared = parent[-1]
    (copy,) = kv.place([child])
    assert copy == Copy(shared, child[-1])
    assert parent[-1] == shared != child[-1]
    assert parent[0] == child[0]
    assert kv.place([child]) == kv.place([parent]) == []  # each has its own now
    kv.audit([parent, child])
    assert torch.equal(read(kv, parent), kv_new)


@pytest.mark.parametrize("in_step", [1, 2, 3])
def test_the_last_of_three_owners_writes_in_place(in_step):
    """One that is not in the step keeps the block as it is, so that then everybody in the step needs a copy."""
    kv = make_kv(num_blocks=4)
    owners = [started(kv, 2)[0]]
    owners += [kv.share(owners[0]), kv.share(owners[0])]
    shared = owners[0][0]
    copies = kv.place(owners[:in_step])
    assert [copy.source for copy in copies] == [shared] * min(in_step, 2)
    assert [table[0] == shared for table in owners] == [in_step <= number for number in range(2)] + [True]
    assert kv.info(shared).owners == 3 - len(copies)
    kv.audit(owners)


def test_forks_of_forks_each_read_their_own():
    """A chain of forks, each from the one before after a token more; then all of them go on in one step."""
    kv = make_kv(num_blocks=30)
    tables, dense = [], []
    table, kv_new = started(kv, 5)
    for generation in range(4):
        tables.append(table)
        dense.append(kv_new)
        fork, new = kv.share(table), tokens(1, 10 + generation)
        append(kv, [fork], [], new)
        table, kv_new = fork, torch.cat([kv_new, new], dim=2)
    for step in range(6):
        new = tokens(len(tables), 20 + step)
        append(kv, tables, dense, new)
        kv.audit([*tables, table])
        for each, held in zip([*tables, table], [*dense, kv_new], strict=True):
            assert torch.equal(read(kv, each), held)


def test_a_block_is_copied_to_as_many_places_as_it_has_writers_and_no_copy_is_copied():
    kv = make_kv(num_blocks=20)
    first, second = started(kv, 2, 1)[0], started(kv, 7, 2)[0]
    batch = [first, second, *(kv.share(table) for table in (first, second, first))]
    copies = kv.place(batch)
    sources, destinations = zip(*copies, strict=True)
    assert len(set(sources)) == 2
    assert len(set(destinations)) == 3
    assert not set(sources) & set(destinations)
    kv.audit(batch)


def test_place_frees_nothing():
    """A source keeps an owner, so that what is copied is still there when it is copied."""
    kv = make_kv(num_blocks=8)
    parent, _ = started(kv, 6)
    batch = [parent, kv.share(parent), kv.share(parent)]
    before = set(kv.blocks_in_use)
    copies = kv.place(batch)
    assert before <= set(kv.blocks_in_use)
    assert all(kv.info(copy.source).owners >= 1 for copy in copies)
    assert len(kv.blocks_in_use) == len(before) + len(copies)


def mixed_batch(kv):
    """Ten tables that need a block, a copy, or nothing; and how many blocks all of them need."""
    empty, inside, full = started(kv, 0)[0], started(kv, 3)[0], started(kv, 8)[0]
    parent, other = started(kv, 6)[0], started(kv, 1)[0]
    family = [parent, kv.share(parent), kv.share(parent)]
    outside = kv.share(other)  # not in the step
    return [empty, family[0], inside, full, family[1], other, kv.share(full), family[2]], [outside], 1 + 1 + 1 + 2 + 1


def test_place_needs_just_the_blocks_that_it_says():
    for short in (0, 1, 2):
        kv = make_kv(num_blocks=16)
        batch, others, needed = mixed_batch(kv)
        assert kv.blocks_to_append(batch) == needed
        hog = kv.allocate((kv.num_available() - needed + short) * kv.block_size)
        before = books(kv, *batch)
        assert kv.can_append(batch) is (short == 0)
        if short:
            with pytest.raises(KVCacheExhausted, match=rf"{needed} KV blocks needed, {needed - short} of 16 available"):
                kv.place(batch)
            assert books(kv, *batch) == before
        else:
            assert len(kv.place(batch)) == 3
            assert kv.num_available() == 0
        kv.audit([*batch, *others, hog])


@pytest.mark.parametrize("fail_at", range(6))
def test_a_place_that_fails_in_the_middle_changes_nothing(monkeypatch, fail_at):
    """Hazard 24: nobody makes the copies of a call that has failed, so no table may show one."""
    kv = make_kv(num_blocks=16)
    batch, others, needed = mixed_batch(kv)
    assert needed == 6
    before = books(kv, *batch)
    real, calls = kv.allocate_block, []

    def failing():
        calls.append(1)
        if len(calls) > fail_at:
            raise MemoryError("injected")
        return real()

    with monkeypatch.context() as patch:
        patch.setattr(kv, "allocate_block", failing)
        with pytest.raises(MemoryError, match="injected"):
            kv.place(batch)
    assert books(kv, *batch) == before
    kv.audit([*batch, *others])
    assert len(kv.place(batch)) == 3


def test_place_evicts_what_the_prefix_cache_keeps():
    kv = make_kv(num_blocks=3)
    kept, _ = started(kv, 4)
    block = kept[0]
    kv.keep(block)
    forgotten = []
    kv.forget = forgotten.append
    kv.free(kept)
    table, _ = started(kv, 8, 2)
    assert forgotten == []
    kv.audit([table], [block])
    kv.place([table])
    assert forgotten == [block] == [table[-1]]
    kv.audit([table])


def test_a_kept_block_that_is_full_is_shared_and_not_copied():
    kv = make_kv()
    first, kv_new = started(kv, 4)
    kv.keep(first[0])
    second = kv.allocate(6, [first[0]])
    write(kv, second, 4, tokens(2, 2))
    assert kv.place([first, second]) == []
    assert kv.info(first[0]).owners == 2
    kv.audit([first, second], [first[0]])
    assert torch.equal(read(kv, second)[:, :, :4], kv_new)


# -- whole sessions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 9, 31, 32])
def test_blocks_are_as_many_as_the_length_needs(length):
    kv = make_kv(num_blocks=16)
    appended = kv.allocate(0)
    for _ in range(length):
        append(kv, [appended], [], tokens(1, 1))
    allocated = kv.allocate(length)
    for table in (appended, allocated):
        assert len(table) == -(-length // 4)
        assert kv.length(table) == length
    kv.audit([appended, allocated])


def test_tables_become_indices_of_each_layer():
    kv = make_kv()
    tables = [kv.allocate(9), kv.allocate(0), kv.allocate(4)]
    rows = [table + [0] * (3 - len(table)) for table in tables]
    assert kv.block_indices(tables).tolist() == [rows] * L


def test_who_may_need_a_block():
    kv = make_kv()
    table = kv.allocate(6)
    assert not kv.may_need_block(table, 8)
    assert kv.may_need_block(table, 9)
    sibling = kv.share(table)
    assert kv.may_need_block(table, 8)
    kv.free(sibling)
    assert not kv.may_need_block(table, 8)


def test_double_free_raises_and_the_new_owner_keeps_its_block():
    kv = make_kv(num_blocks=1)
    first = kv.allocate(3)
    kv.free(first)
    second = kv.allocate(3)
    for _ in range(2):
        with pytest.raises(BlockError, match="freed twice"):
            kv.free(first)
        with pytest.raises(BlockError, match="used after"):
            kv.share(first)
        kv.audit([second])


def test_a_table_that_shows_blocks_it_does_not_own_frees_nothing():
    kv = make_kv()
    held = kv.allocate(5)
    kv.info(held[0]).owners = 0
    with pytest.raises(BlockError, match="does not own"):
        kv.free(held)
    assert len(held) == 2
    held[0] = 7
    with pytest.raises(BlockError, match="block 7 is not in use"):
        kv.free(held)


@pytest.mark.parametrize("what", ["free", "share"])
def test_only_an_owner_is_taken(what):
    kv, other = make_kv(), make_kv()
    held, foreign = kv.allocate(5), other.allocate(5)
    with pytest.raises(BlockError, match=r"\[0, 1\] is no block table"):
        getattr(kv, what)([0, 1])
    for table in (BlockTable(held), foreign):
        with pytest.raises(BlockError, match="of another cache, or a copy"):
            getattr(kv, what)(table)
    kv.audit([held])
    other.audit([foreign])


@pytest.mark.parametrize("bad", [-1, 1.5, "4", None, True])
def test_only_a_number_of_tokens_is_allocated(bad):
    kv = make_kv()
    with pytest.raises(BlockError, match=r"num_tokens is .*: give a whole number, 0 or more"):
        kv.allocate(bad)
    kv.audit([])


@pytest.mark.parametrize("call", ["info", "keep", "unkeep"])
@pytest.mark.parametrize("block", [5, -1, "0", None, [0]])
def test_a_block_that_is_not_in_use_is_named(call, block):
    kv = make_kv()
    table = kv.allocate(4)
    with pytest.raises(BlockError, match="is not in use: freed twice, or never allocated"):
        getattr(kv, call)(block)
    kv.audit([table])


def test_shared_blocks_that_cannot_be_change_nothing():
    kv = make_kv()
    table = kv.allocate(8)
    for shared, says in (([table[0], table[0]], "shows a block twice"), ([table[0], 7], "block 7 is not in use")):
        with pytest.raises(BlockError, match=says):
            kv.allocate(9, shared)
        kv.audit([table])


def test_an_exhausted_pool_says_what_to_do_and_the_shared_blocks_lose_no_owner():
    kv = make_kv(num_blocks=3)
    table = kv.allocate(4)
    with pytest.raises(KVCacheExhausted, match="3 KV blocks needed, 2 of 3 available: free a session"):
        kv.allocate(16, [table[0]])
    kv.audit([table])


@pytest.mark.parametrize("fail_at", range(3))
def test_an_allocation_that_fails_in_the_middle_changes_nothing(monkeypatch, fail_at):
    kv = make_kv()
    held = kv.allocate(4)
    before = books(kv, held)
    real, calls = kv.allocate_block, []

    def failing():
        calls.append(1)
        if len(calls) > fail_at:
            raise KVCacheExhausted("injected")
        return real()

    with monkeypatch.context() as patch:
        patch.setattr(kv, "allocate_block", failing)
        with pytest.raises(KVCacheExhausted, match="injected"):
            kv.allocate(16, [held[0]])
    assert books(kv, held) == before
    kv.audit([held])


@pytest.mark.parametrize("given", ["keys", "values", "blocks", "slots"])
def test_tokens_of_another_shape_are_not_written(given):
    kv = make_kv()
    table, kv_new = started(kv, 3)
    good = {"blocks": torch.tensor([table[0]] * 3), "slots": torch.arange(3)}
    good |= {"keys": tokens(3, 9)[0, 0], "values": tokens(3, 9)[1, 0]}
    bad = good | {given: good[given][:2]}
    with pytest.raises(BlockError, match=r"give \[T, 2, 3\] twice, and \[T\] twice"):
        kv.write_tokens(0, bad["blocks"], bad["slots"], bad["keys"], bad["values"])
    assert torch.equal(read(kv, table), kv_new)


@pytest.mark.parametrize(
    "name", ["num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim", "dtype", "device"]
)
def test_an_argument_that_cannot_be_is_named_with_its_value(name):
    good = {"num_layers": 1, "num_blocks": 2, "num_kv_heads": 1, "block_size": 4, "head_dim": 3}
    good |= {"dtype": torch.float32, "device": torch.device("cpu")}
    with pytest.raises(ConfigError, match=rf"^{name} is -7"):
        KVBlockManager(**good | {name: -7})


# -- the invariants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("break_it", broken_pools(), ids=lambda f: f.__name__)
def test_audit_sees_a_broken_pool(break_it):
    kv = make_kv()
    table, kept = kv.allocate(6), kv.allocate(4)
    (block,) = kept
    kv.keep(block)
    kv.free(kept)
    kv.audit([table], [block])
    break_it(kv, table, block)
    with pytest.raises(BlockError):
        kv.audit([table], [block])


def test_audit_needs_all_holders_and_all_that_is_cached():
    kv = make_kv()
    table, other = kv.allocate(6), kv.allocate(4)
    kv.keep(table[0])
    kv.audit([table, other], [table[0]])
    for holders, cached in (([table], [table[0]]), ([table, other], []), ([table, other, other], [table[0]])):
        with pytest.raises(BlockError):
            kv.audit(holders, cached)
