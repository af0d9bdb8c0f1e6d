"""The KVBlockManager of lessons 035 to 061, whose layers have lists of their own: copies, failures and misuse."""

import pytest
import torch

from rosecourse import BlockError, KVCacheExhausted
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager

L, H, D = 2, 2, 3


def make_kv(num_blocks=8):
    shape = {"num_layers": L, "num_kv_heads": H, "head_dim": D, "block_size": 4, "num_blocks": num_blocks}
    return KVBlockManager(**shape, dtype=torch.float32, device=torch.device("cpu"))


def unowned(kv, table):
    for ids in table:
        kv.info(ids[0]).owners = 0
    kv.free(table)


MISUSES = [
    (lambda kv, table: [kv.free(other) for other in [kv.allocate(1)] * 2], "freed twice"),
    (unowned, "does not own"),
    (lambda kv, table: kv.free(BlockTable([[7], []])), "or a copy"),
    (lambda kv, table: kv.free([[0], [8]]), "no block table"),
    (lambda kv, table: kv.share(make_kv().allocate(1)), "of another cache"),
    (lambda kv, table: kv.share([[0]]), "no block table of 2 layers"),
    (lambda kv, table: kv.share([table[1], table[0]]), "of another layer"),
    (lambda kv, table: kv.share([table[0] * 2, table[1]]), "shows a block twice"),
    (lambda kv, table: kv.info(7), "block 7 is not in use"),
    (lambda kv, table: kv.allocate(-1), "num_tokens is -1: give a whole number"),
    (lambda kv, table: kv.allocate_block(2), "layer_idx is 2: give 0 to 1"),
    (lambda kv, table: [kv.allocate_block(0) for _ in range(99)], "1 KV blocks needed, 0 of "),
]


@pytest.mark.parametrize(("call", "says"), MISUSES)
def test_misuse_is_refused_and_changes_no_table(call, says):
    kv = make_kv()
    table = kv.allocate(5)
    before = [list(ids) for ids in table]
    with pytest.raises((BlockError, KVCacheExhausted), match=says):
        call(kv, table)
    assert table == before


BREAKS = {
    "an owner dropped": "kv.info(table[0][0]).owners -= 1",
    "an owner added": "kv.info(table[1][0]).owners += 1",
    "leaked": "table[0].pop()",
    "freed and held": "kv._free_block_indices[0].append(table[0][0])",
    "lost": "kv._free_block_indices[1].pop()",
    "twice in a list": "table[0].append(table[0][0])",
    "of another layer": "table[0], table[1] = table[1], table[0]",
    "overfull": "kv.info(table[0][0]).length = 5",
    "not full": "kv.info(table[0][0]).length = 3",
    "displaced": "kv.info(table[0][1]).start, kv.info(table[0][1]).length = 3, 3",
    "a layer behind": "kv.info(table[1][1]).length = 1",
    "cached unknown": "kv.info(table[0][0]).cached = True",
    "miscounted": "kv._idle_block_ids[0][table[0][0]] = None",
    "a holder is told twice": "holders.append(table)",
    "misdescribed": "kv.info(table[0][0]).block_index = 5",
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_an_audit_sees_a_broken_pool(change):
    kv = make_kv()
    table = kv.allocate(6)
    holders = [table]
    kv.audit(holders)
    exec(change, {"kv": kv, "table": table, "holders": holders})
    with pytest.raises(BlockError):
        kv.audit(holders)
