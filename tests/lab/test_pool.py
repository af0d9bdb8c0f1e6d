"""The pool in which parts are tried, and what it reads and changes in the manager through public names."""

import pytest
import torch

from rosecourse.lab.world.pool import Pool, Sizes


def test_the_blocks_in_use_can_be_seen_and_not_written():
    pool = Pool(Sizes(layers=1, num_blocks=4))
    in_use = pool.kv.blocks_in_use
    assert not in_use
    session = pool.start(5)
    assert list(in_use) == session.table[0]  # a view, which follows what happens
    assert all(in_use[block_id] is pool.kv.info(block_id) is pool.info(block_id) for block_id in in_use)
    with pytest.raises(TypeError):
        in_use[0] = None
    pool.free(session)
    assert not in_use
    assert pool.info(0) is None


def test_the_free_blocks_are_taken_from_the_end_and_may_be_reordered():
    pool = Pool(Sizes(layers=2, num_blocks=5))
    orders = [list(pool.kv.free_blocks(layer)) for layer in range(2)]
    assert [sorted(order) for order in orders] == [[0, 1, 2, 3, 4]] * 2
    assert orders[0] != orders[1]
    pool.kv.free_blocks(1).sort()
    assert [pool.kv.allocate_block(layer) for layer in (0, 0, 1, 1)] == [orders[0][-1], orders[0][-2], 5 + 4, 5 + 3]
    assert pool.kv.free_blocks(1) == [0, 1, 2]
    assert pool.kv.num_available(1) == 3


def test_a_pool_holds_the_numbers_of_its_sessions_between_guards():
    pool = Pool(Sizes())
    parent = pool.start(6)
    child = pool.fork(parent)
    before = pool.before()
    assert before.lists == {0: parent.table, 1: child.table}
    assert all(info.owners == 2 for info in before.infos.values())
    for layer, ids in enumerate(child.table):
        keys = torch.cat([pool.kv.k_layers[layer][pool.index(i)] for i in ids], dim=1)[:, :6]  # [H, 6, D]
        assert torch.equal(keys, child.dense[0, layer].transpose(0, 1))
    for layers in pool.storage:
        assert layers[0][: pool.sizes.guard].isnan().all()
        assert layers[-1][-pool.sizes.guard :].isnan().all()
        assert (
            layers[0].numel() - pool.sizes.guard == layers[1].numel() - pool.sizes.guard == pool.kv.k_layers[0].numel()
        )
    pool.free(parent)
    pool.free(child)
    assert [length for _, length in pool.before().gone] == [4, 2] * 2
