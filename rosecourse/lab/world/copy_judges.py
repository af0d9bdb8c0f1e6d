"""The judge of copies: each destination holds what its source held, and everything else is what it was.

It reads the pool before and after the call. The order of its questions is that in which one fault explains the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, cast

import torch

from ...pictures.sheet import counted
from .causes import Cause
from .misplaced import KV, how_changed
from .pool import Pool, bits
from .telling import fail, names_of

TURNED = "source and destination are exchanged: the list names the source first, `(source, destination)`"
ROWS = "sources and destinations are in another order: the n-th destination gets the n-th source"


class Asked(NamedTuple):
    """A copy that was asked for. slots: how many of the block are in use, from the first on."""

    source: int
    destination: int
    slots: int


class Place(NamedTuple):
    """A row of D numbers in the caches."""

    which: int
    layer: int
    block: int
    head: int
    slot: int


@dataclass(frozen=True)
class Copied:
    """The caches as they are after a call. old, now: bits [2, L, num_blocks, H, block_size, D].

    wrong: bool [2, L, num_blocks, H, block_size], the rows that are not what they should be. Slots of a destination
    that are not in use may hold anything.
    """

    pool: Pool
    asked: Sequence[Asked]
    old: torch.Tensor
    now: torch.Tensor
    wrong: torch.Tensor

    def untouched(self, copy: Asked) -> torch.Tensor:
        """bool [2, L, H, slots]: the rows of a destination that are wrong, and what they were before the call."""
        at = (slice(None), slice(None), copy.destination, slice(None), slice(copy.slots))
        same = (self.now[at] == self.old[at]).all(dim=-1)
        return self.wrong[at] & same

    def is_wrong(self, copy: Asked) -> bool:
        return bool(self.wrong[:, :, copy.destination].any())

    def held(self, block: int) -> str:
        """Whose block it is, in words."""
        holders = [t for t in self.pool.sessions if block in t.table]
        return f"which belongs to {names_of(holders)}" if holders else "which nobody uses"


def look_at_copies(pool: Pool, before: torch.Tensor, asked: Sequence[Asked]) -> None:
    """Raises `PartIsWrong` unless all copies are made, and nothing else. before: `Pool.caches` before the call."""
    copied = _compared(pool, before, asked)
    if not copied.wrong.any():
        return
    _look_at_sources(copied)
    _look_at_other_blocks(copied)
    _look_at_foreign_rows(copied)
    _look_at_what_is_missing(copied)


def _compared(pool: Pool, before: torch.Tensor, asked: Sequence[Asked]) -> Copied:
    old, now = bits(before), bits(pool.caches())
    expected = old.clone()
    for source, destination, _ in asked:
        expected[:, :, destination] = old[:, :, source]
    wrong = (now != expected).any(dim=-1)
    for _, destination, slots in asked:
        wrong[:, :, destination, :, slots:] = False
    return Copied(pool, asked, old, now, wrong)


# -- what was not to be written ---------------------------------------------------------------------------------------


def _look_at_sources(copied: Copied) -> None:
    """A source that holds what its destination held: the copy went the other way."""
    for source, destination, _ in copied.asked:
        changed = copied.wrong[:, :, source]
        there, was = copied.now[:, :, source], copied.old[:, :, destination]
        if changed.any() and bool((there == was).all(dim=-1)[changed].all()):
            what = f"block {source}, the source of a copy, now holds what block {destination}, its destination, held"
            lost = f"lost: what stood in block {source}, {copied.held(source)}"
            _fail(copied, Cause.OLD_TOKENS_CHANGED, what, lost, reason=TURNED, blocks=[source, destination])


def _look_at_other_blocks(copied: Copied) -> None:
    """A block that is no destination, and is not what it was."""
    changed = copied.wrong.clone()
    changed[:, :, [copy.destination for copy in copied.asked]] = False
    if not changed.any():
        return
    at = _first(changed)
    block = at.block
    what = f"block {block}, {copied.held(block)}, has changed in layer {at.layer}, and is the destination of no copy"
    origin = _where_it_was(copied, at, copied.now[at])
    found = f"found in slot {at.slot}: {_told(origin)}" if origin else ""
    reason = "copies are made from and to the blocks of the list, and no other block is written"
    if origin and any(copy.source == origin.block and copied.is_wrong(copy) for copy in copied.asked):
        reason = "a copy went to the wrong block: the list says which, and it is the same in K, in V and in all layers"
    mine = any(block in t.table for t in copied.pool.sessions)
    cause = Cause.OLD_TOKENS_CHANGED if mine else Cause.WRONG_BLOCK
    _fail(copied, cause, what, found, reason=reason, layer=at.layer, blocks=[block])


# -- what the destinations hold ---------------------------------------------------------------------------------------


def _look_at_foreign_rows(copied: Copied) -> None:
    """A row of a destination that was written, and with something else than what its source holds."""
    foreign = copied.wrong & (copied.now != copied.old).any(dim=-1)
    if not foreign.any():
        return
    at = _first(foreign)
    source = next(copy.source for copy in copied.asked if copy.destination == at.block)
    right, there = at._replace(block=source), copied.now[at]
    origin = _where_it_was(copied, right, there)
    expected = f"expected: {_told(right)}, which is to be copied into block {at.block}"
    found = f"found:    {_told(origin) if origin else _numbers(copied, there)}"
    if origin:
        cause, reason = _of_origin(copied, right, origin)
    else:
        cause, reason = Cause.VALUES_CHANGED, _changed(copied, at, right)
        expected += f": {_numbers(copied, copied.old[right])}"
    what = f"block {at.block} in layer {at.layer}, {KV[at.which]}: slot {at.slot} holds something else than its source"
    _fail(copied, cause, what, expected, found, reason=reason, layer=at.layer, blocks=[at.block])


def _of_origin(copied: Copied, right: Place, origin: Place) -> tuple[Cause, str]:
    """The cause, and what it comes from, where a destination holds another row of the pool."""
    if origin.block != right.block:
        listed = any(origin.block in copy[:2] for copy in copied.asked)
        return Cause.WRONG_BLOCK, ROWS if listed else "another block was read: the list names the source first"
    if origin.which != right.which:
        return Cause.K_V_SWAPPED, "K is copied within `kv.keys`, V within `kv.values`: is a buffer used for both?"
    if origin.layer != right.layer:
        return Cause.WRONG_LAYER, "each layer is copied within itself: a block has the same number in all of them"
    if origin.head != right.head:
        return Cause.VALUES_CHANGED, "heads are mixed up: a layer is [num_blocks, H, block_size, D]"
    return Cause.WRONG_SLOT, "slots are shifted: a token has the same slot in the copy as in the source"


def _where_it_was(copied: Copied, near: Place, row: torch.Tensor) -> Place | None:
    """Where a row stood before the call; of several places the one that has most in common with `near`."""
    places = (copied.old == row).all(dim=-1).nonzero().tolist()
    sources = {copy.source for copy in copied.asked}

    def likeness(place: Place) -> tuple[bool, int, bool]:
        return place.block == near.block, sum(map(int.__eq__, place, near)), place.block in sources

    return max((Place(*place) for place in places), key=likeness, default=None)


def _changed(copied: Copied, at: Place, right: Place) -> str:
    """In which way the numbers come from the right ones; empty if in none that is known."""
    dtype, every_head = copied.pool.sizes.dtype, cast(Any, slice(None))
    rows = (copied.old[right._replace(head=every_head)], copied.now[at._replace(head=every_head)])
    old = copied.old[at._replace(head=every_head)]
    return how_changed(*(row.contiguous().view(dtype) for row in (*rows, old)))


# -- what is missing --------------------------------------------------------------------------------------------------


def _look_at_what_is_missing(copied: Copied) -> None:
    """Rows of destinations that are what they were before the call."""
    missing = [copy for copy in copied.asked if copied.untouched(copy).any()]
    in_part = [copy for copy in missing if not copied.untouched(copy).all()]
    if in_part:  # of a block with few tokens all of them may be missing, for the same reason
        _tell_what_is_missing(copied, in_part[0])
    elif len(missing) == len(copied.asked):
        _tell_that_nothing_was_copied(copied)
    else:
        _tell_which_copies_are_missing(copied, missing)


def _tell_what_is_missing(copied: Copied, copy: Asked) -> NoReturn:
    """Of a copy that was begun and not finished, say what is missing of K and V, layers, heads and slots."""
    untouched = copied.untouched(copy)
    indices = [untouched.any(dim=[n for n in range(4) if n != dim]).nonzero().flatten().tolist() for dim in range(4)]
    k_and_v, *others = indices
    lines = [] if len(k_and_v) == 2 else [f"missing: {KV[k_and_v[0]]}"]
    for name, found, size in zip(("layers", "heads", "slots"), others, untouched.shape[1:], strict=True):
        if len(found) < size:
            lines.append(f"missing in {name} {found}")
    in_use = f"{counted(copy.slots, 'slot')} of it {'is' if copy.slots == 1 else 'are'} in use"
    what = f"the copy of block {copy.source} to block {copy.destination} is not complete; {in_use}"
    reason = "a copy is that of the whole block: K and V, all layers, all heads, and every slot in use"
    layer = others[0][0]
    _fail(copied, Cause.COW_PARTIAL, what, *lines, reason=reason, layer=layer, blocks=[copy.destination])


def _tell_that_nothing_was_copied(copied: Copied) -> NoReturn:
    first, *others = copied.asked
    what = f"nothing was copied from block {first.source} to block {first.destination}"
    reason = "a list of one copy is to be made as well, and in the cache itself"
    if others:
        what += ", nor in any other copy"
        reason = "an indexing by tensors or lists gives a copy: what is written into it is not in the cache"
    _fail(copied, Cause.NOTHING_WRITTEN, what, reason=reason, blocks=[first.destination])


def _tell_which_copies_are_missing(copied: Copied, missing: Sequence[Asked]) -> NoReturn:
    first = missing[0]
    what = f"copy {copied.asked.index(first)} of the list, from block {first.source} to block {first.destination}, "
    many = f"{len(missing)} of {len(copied.asked)} copies {'is' if len(missing) == 1 else 'are'} missing"
    reason = "every copy of the list is made, the first and the last one too"
    if [copy.source for copy in copied.asked].count(first.source) > 1:
        reason = "one source may have several destinations, and each of them gets its copy"
    _fail(copied, Cause.COPY_MISSING, what + "was not made", many, reason=reason, blocks=[first.destination])


# -- telling ----------------------------------------------------------------------------------------------------------


def _first(rows: torch.Tensor) -> Place:
    return Place(*rows.nonzero()[0].tolist())


def _told(place: Place) -> str:
    """A row as it stood before the call."""
    return f"{KV[place.which]} of block {place.block}, layer {place.layer}, head {place.head}, slot {place.slot}"


def _numbers(copied: Copied, row: torch.Tensor) -> str:
    numbers = row.contiguous().view(copied.pool.sizes.dtype).tolist()
    return f"[{', '.join(f'{number:.9g}' for number in numbers[:8])}{', ...' if len(numbers) > 8 else ''}]"


def _fail(
    copied: Copied, cause: Cause, what: str, *details: str, reason: str, blocks: Sequence[int], layer: int = 0
) -> NoReturn:
    """Raise `PartIsWrong`, with the list of copies and a picture of a layer."""
    shown = ", ".join(f"{copy.source} -> {copy.destination}" for copy in copied.asked[:6])
    more = f", and {len(copied.asked) - 6} more" if len(copied.asked) > 6 else ""
    listed = f"the list: {shown or 'empty'}{more}"
    marked = [layer * copied.pool.sizes.num_blocks + block for block in blocks]
    fail(copied.pool, cause, what, *filter(None, details), listed, reason=reason, layer=layer, marked=marked)
