"""The KVBlockManager with one table for all layers: places, indices, misuse, and the audit."""

import pytest
import torch

from rosecourse import BlockError
from rosecourse.kv.blocks import BlockTable, Copy, KVBlockManager

L, H, D = 2, 2, 3


SIZES = {"num_layers": L, "num_kv_heads": H, "head_dim": D, "block_size": 4, "num_blocks": 8}
SIZES |= {"dtype": torch.float32, "device": torch.device("cpu")}


def make_kv():
    return KVBlockManager(**SIZES)


@pytest.mark.parametrize("in_step", [1, 2, 3])
def test_the_last_of_three_owners_writes_in_place(in_step):
    """One that is not in the step keeps the block as it is, so that then everybody in the step needs a copy."""
    kv = make_kv()
    first = kv.allocate(2)
    owners = [first, kv.share(first), kv.share(first)]
    shared = owners[0][0]
    copies = kv.place(owners[:in_step])
    assert copies == [Copy(shared, owners[number][0]) for number in range(min(in_step, 2))]
    assert [table[0] == shared for table in owners] == [in_step <= number for number in range(2)] + [True]
    assert kv.info(shared).owners == 3 - len(copies)
    kv.audit(owners)


def test_tables_become_indices_of_each_layer():
    kv = make_kv()
    tables = [kv.allocate(9), kv.allocate(0), kv.allocate(4)]
    assert kv.block_indices(tables).tolist() == [[table + [0] * (3 - len(table)) for table in tables]] * L


# -- misuse -------------------------------------------------------------------------------------------------------


def freed(kv):
    other = kv.allocate(3)
    kv.free(other)
    return other


MISUSES = [
    (lambda kv, table: kv.allocate(9, [table[0], 7]), "block 7 is not in use"),
    *((lambda kv, table, bad=bad: kv.info(bad), "is not in use: freed twice") for bad in (5, -1, "0", None, [0])),
    (lambda kv, table: kv.keep(5), "block 5 is not in use"),
    (lambda kv, table: kv.unkeep(5), "block 5 is not in use"),
    (lambda kv, table: kv.free([0, 1]), r"\[0, 1\] is no block table of this"),
    (lambda kv, table: kv.share([0, 1]), r"\[0, 1\] is no block table of this"),
    (lambda kv, table: kv.free(BlockTable(table)), "no block table of this cache"),
    (lambda kv, table: kv.share(make_kv().allocate(5)), "no block table of this cache"),
    (lambda kv, table: kv.free(freed(kv)), "freed twice"),
    (lambda kv, table: kv.share(freed(kv)), "used after"),
]


@pytest.mark.parametrize(("call", "says"), MISUSES)
def test_misuse_is_refused_and_changes_nothing(call, says):
    kv = make_kv()
    table = kv.allocate(6)
    before = sorted(kv.free_blocks()), list(table), kv.num_available()
    with pytest.raises(BlockError, match=says):
        call(kv, table)
    assert (sorted(kv.free_blocks()), list(table), kv.num_available()) == before
    kv.audit([table])


# -- the audit ----------------------------------------------------------------------------------------------------

BREAKS = {  # `table` holds two blocks; the block `kept` has no owner, and the prefix cache keeps it
    "an owner dropped": "kv.info(table[0]).owners -= 1",
    "an owner added": "kv.info(table[1]).owners += 1",
    "leaked": "table.pop()",
    "freed and held": "kv._free_block_indices.append(table[0])",
    "free twice": "kv._free_block_indices.append(kv._free_block_indices[0])",
    "lost": "kv._free_block_indices.pop()",
    "of another pool": "kv._free_block_indices[0] = kv.num_blocks",
    "twice in a table": "table[1] = table[0]",
    "replaced": "table[1] = kv._free_block_indices[0]",
    "too many tokens": "table.num_tokens = 9",
    "too few tokens": "table.num_tokens = 3",
    "described and free": "kv._block_infos[kv._free_block_indices[0]] = type(kv.info(table[0]))(owners=0)",
    "cached unknown": "kv.info(table[0]).cached = True",
    "known and not cached": "kv.info(kept).cached = False",
    "idle and held": "kv._idle_blocks[table[0]] = None",
    "not idle": "kv._idle_blocks.clear()",
    "a holder is not told": "holders.pop()",
    "a holder is told twice": "holders.append(table)",
    "the prefix cache knows nothing": "cached.clear()",
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_audit_sees_a_broken_pool(change):
    kv = make_kv()
    table, other = kv.allocate(6), kv.allocate(4)
    kept = other[0]
    kv.keep(kept)
    kv.free(other)
    holders, cached = [table], [kept]
    kv.audit(holders, cached)
    exec(change, {"kv": kv, "table": table, "kept": kept, "holders": holders, "cached": cached})
    with pytest.raises(BlockError):
        kv.audit(holders, cached)
