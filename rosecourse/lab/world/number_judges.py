"""Judges of the numbers: every slot holds the K and V that belong there, and nothing else was written.

Each raises `PartIsWrong` with the row that shows the cause best, of all that are wrong after the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from ...pictures.sheet import counted
from .causes import Cause
from .misplaced import KV, Finding, Misplaced, Row, differ
from .pool import Before, Pool, Tracked, bits
from .telling import block_name, fail, names_of


def look_at_contents(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """Every slot of every live session, read through its block table, holds what was appended there."""
    caches = pool.caches()
    for t in pool.sessions:
        for layer, ids in enumerate(pool.lists(t)):
            blocks = [pool.index(i) for i in ids]
            read = caches[:, layer, blocks].transpose(2, 3).flatten(1, 2)[:, : t.length]  # [2, length, H, D]
            if t.length and not torch.equal(bits(read), bits(t.dense[:, layer])):
                _tell(Misplaced(pool, before, batch))


def _tell(misplaced: Misplaced) -> NoReturn:
    """Raise `PartIsWrong` for the rows of a step that are wrong."""
    pool = misplaced.pool
    row, finding = misplaced.told()
    block_id = pool.index(row.block) + row.layer * pool.sizes.num_blocks
    details = [
        f"expected: {_shown(misplaced, row, row.right)}",
        f"found:    {_shown(misplaced, row, row.there)}",
        f"slot:     {row.slot} of {block_name(pool, block_id)}",
        *_lies(pool, row, finding),
        *_how_many(misplaced),
    ]
    what = f"{_where(pool, row)} {_content(misplaced, row, finding)}"
    at, or_else = [block_id], finding.or_else
    fail(pool, finding.cause, what, *details, reason=finding.reason, layer=row.layer, marked=at, or_else=or_else)


def _where(pool: Pool, row: Row) -> str:
    heads = [h for h in range(pool.sizes.heads) if row.wrong[h].any()]
    in_heads = "" if len(heads) == pool.sizes.heads else f", in head {', '.join(map(str, heads))} alone,"
    return f"position {row.position} of session {row.tracked.name} in layer {row.layer}{in_heads}"


def _content(misplaced: Misplaced, row: Row, finding: Finding) -> str:
    which = KV[row.which]
    if row.untouched and row.new:
        return f"was never written: its {which} slot holds what was there before the step"
    if row.untouched:
        return f"is lost: its {which} slot, in a block taken in this step, holds what was there before"
    origin = misplaced.origin_of(row.there[row.head])
    if finding.reason.startswith("rounded to"):
        return f"holds a rounded {which}"
    return f"holds the {origin}" if origin else f"holds no token's {which}"


def _shown(misplaced: Misplaced, row: Row, numbers: torch.Tensor) -> str:
    """The numbers of the first head that is wrong, in full precision, and whose they are."""
    origin = misplaced.origin_of(numbers[row.head])
    first = numbers[row.head].tolist()
    told = f"[{', '.join(f'{number:.9g}' for number in first[:8])}{', ...' if len(first) > 8 else ''}]"
    return f"the {origin}: {told}" if origin else told


def _lies(pool: Pool, row: Row, finding: Finding) -> list[str]:
    if finding.lies is None:
        return []
    which, layer, block, head, slot = finding.lies
    name = block_name(pool, block + layer * pool.sizes.num_blocks)
    cache = f", in the cache of {KV[which]}" if which != row.which else ""
    in_head = f", in head {head}" if head != row.head else ""
    return [f"what belongs there lies in slot {slot} of {name}{in_head}{cache}"]


def _how_many(misplaced: Misplaced) -> list[str]:
    """How much of a step is wrong, where it is more than one row."""
    rows = misplaced.rows
    if len(rows) == 1:
        return []
    names = ", ".join(dict.fromkeys(row.tracked.name for row in rows[:8]))
    places = f"layers {sorted({r.layer for r in rows})}, {' and '.join(sorted({KV[r.which] for r in rows}))}"
    return [f"wrong after this step: {counted(len(rows), 'row')}, of sessions {names}; {places}"]


# -- what nobody should have touched ---------------------------------------------------------------------------------


def look_at_guards(pool: Pool) -> None:
    """The memory before and behind each layer's cache is still NaN."""
    for which, storage in enumerate(pool.storage):
        for layer, numbers in enumerate(storage):
            cache = (pool.kv.k_layers, pool.kv.v_layers)[which][layer]
            before = (cache.data_ptr() - numbers.data_ptr()) // numbers.element_size()
            for where, guard in (("before", numbers[:before]), ("behind", numbers[before + cache.numel() :])):
                if not guard.isnan().all():
                    of = f"the {KV[which]} cache of layer {layer}"
                    what = f"the part wrote {where} {of}, into memory that is not its"
                    row = pool.sizes.heads * pool.sizes.head_dim
                    reason = "an offset is too large: ((block × H + head) × block_size + slot) × D"
                    if row & (row - 1):
                        reason = f"H × D is {row}, no power of two: a kernel's row is longer; mask what lies behind it"
                    fail(pool, Cause.OUTSIDE, what, reason=reason, layer=layer)


def look_at_the_rest(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """What nobody had to write is what it was, bit by bit. Free slots of a block taken in this step do not count."""
    changed = differ(pool.caches(), before.caches)
    for t in batch:
        for layer, ids in enumerate(pool.lists(t)):
            changed[:, layer, pool.index(ids[-1]), :, (t.length - 1) % pool.sizes.block_size] = False
            for block_id in ids:
                if block_id not in before.infos:
                    changed[:, layer, pool.index(block_id)] = False
    if not changed.any():
        return
    which, layer, block, head, slot, _ = (int(n) for n in changed.nonzero()[0])
    block_id = layer * pool.sizes.num_blocks + block
    holders = [t for t in pool.sessions if block_id in pool.lists(t)[layer]]
    step = Misplaced(pool, before, batch)
    origin = step.origin_of(step.now[which, layer, block, head, slot])
    may_reach = step.has_kernels or bool(holders)  # a block that nobody has is cleared on purpose
    is_outside = may_reach and step.is_foreign(which, layer, block, head, slot)
    cause = Cause.OUTSIDE if is_outside else Cause.OLD_TOKENS_CHANGED
    writers = [t for t in holders if t in batch]
    whose = "which no session shows" if not holders else f"which belongs to {names_of(holders)}"
    what = f"the part wrote to slot {slot} of {block_name(pool, block_id)}, {whose}, where nothing was to be written"
    reason = "look at the block index and at the layer of the write"
    if writers:
        reason = "past the token's own slot: one slot for each session and layer is written, that of the new token"
    details = (f"found:    the {origin}",) if origin else ()
    fail(pool, cause, what, *details, reason=reason, layer=layer, marked=[block_id] if holders else [])
