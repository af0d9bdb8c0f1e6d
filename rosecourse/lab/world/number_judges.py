"""Judges of the numbers: every slot holds the K and V that belong there, and nothing else was written.

Each raises `PartIsWrong` with the first wrong number, and says whose it is and what it is likely to come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from .pool import Before, Pool, Tracked
from .tags import Origin
from .telling import block_name, fail, names_of

Place = tuple[int, int, int]  # (block, head, slot) in the cache of a layer


def look_at_contents(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """Every slot of every live session, read through its block table, holds what was appended there."""
    caches = pool.caches()
    for t in pool.sessions:
        for layer, ids in enumerate(t.table):
            if not t.length:
                continue
            blocks = [pool.index(i) for i in ids]
            read = caches[:, layer, blocks].transpose(2, 3).flatten(1, 2)[:, : t.length]  # [2, length, H, D]
            wrong = _bits(read) != _bits(t.dense[:, layer])
            if wrong.any():
                _tell(pool, before, t, layer, read, wrong)


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    """The same numbers as integers: NaN equals itself."""
    return numbers.contiguous().view(torch.int16 if numbers.element_size() == 2 else torch.int32)


def _tell(pool: Pool, before: Before, t: Tracked, layer: int, read: torch.Tensor, wrong: torch.Tensor) -> NoReturn:
    """Raise `PartIsWrong` for the first wrong number; read, wrong: [2, length, H, D]."""
    which, position, head, _ = (int(n) for n in wrong.nonzero()[0])
    block_id, slot = t.table[layer][position // pool.sizes.block_size], position % pool.sizes.block_size
    old = before.caches[which, layer, pool.index(block_id), head, slot]
    right, there = t.dense[which, layer, position, head], read[which, position, head]
    origin, belongs = pool.tags.origin(float(there[0])), pool.tags.origin(float(right[0]))
    if belongs is None:
        raise AssertionError("the dense copy holds a number that is no token's")
    rounded = any(torch.equal(right.to(d).to(right.dtype), there) for d in (torch.float16, torch.bfloat16))
    heads = [h for h in range(pool.sizes.heads) if wrong[which, position, h].any()]
    in_heads = "" if len(heads) == pool.sizes.heads else f", in head {', '.join(map(str, heads))} alone,"
    untouched = torch.equal(_bits(there), _bits(old))
    where = f"position {position} of session {t.name} in layer {layer}{in_heads}"
    if untouched:
        what = f"{where} was never written: its {'KV'[which]} slot holds what was there before the step"
    else:
        content = f"the {origin}" if origin else f"a rounded {'KV'[which]}" if rounded else f"no token's {'KV'[which]}"
        what = f"{where} holds {content}"
    caches = pool.caches()[which]
    places = [(n, place) for n, cache in enumerate(caches) if (place := place_of(cache, right))]
    lies = next(((n, place) for n, place in places if n == layer), places[0] if places else None)
    details = [
        f"expected: the {belongs}",
        f"found:    {f'the {origin}' if origin else there.tolist()}",
        f"slot:     {slot} of {block_name(pool, block_id)}",
    ]
    if lies:
        other, (block, other_head, other_slot) = lies
        name = block_name(pool, block + other * pool.sizes.num_blocks)
        in_head = f", in head {other_head}" if other_head != head else ""
        details.append(f"what belongs there lies in slot {other_slot} of {name}{in_head}")
    reason = _why(t, position, origin, untouched, lies, belongs, rounded)
    fail(pool, what, *details, reason=reason, layer=layer, marked=[block_id])


def _why(
    t: Tracked,
    position: int,
    origin: Origin | None,
    untouched: bool,
    lies: tuple[int, Place] | None,
    right: Origin,
    rounded: bool,
) -> str:
    """A likely cause of `origin` being where `right` belongs. lies: the layer and the place that hold what is right."""
    if untouched and lies and lies[0] != right.layer:
        return f"it was written to the cache of layer {lies[0]}"
    if untouched and lies:
        return "the right numbers went to another slot: look at the block index and at the position in the block"
    if untouched:
        return f"the K or V of session {t.name} was not written, or only for some heads or sessions"
    if origin is None:
        if rounded:
            return "a cast to a shorter type on the way: keep the dtype of the keys"
        return "written by nothing that came in; or a slot that an unfinished copy left empty"
    if origin.which != right.which and origin.session != right.session:
        return "rows of K and V lie further apart than H × D: they are views; their `stride(0)` says how far"
    if origin.which != right.which:
        return "K and V are swapped, or one of them is written to both caches"
    if origin.layer != right.layer:
        return "keys[layer_idx] and values[layer_idx] belong to the caches of the same layer"
    if origin.session != right.session:
        if position < t.length - 1:
            return "another session wrote into a block that was not its own"
        if right.which == 1:
            return "rows of V are mixed up, those of K are not: are they selected alike, and each by its own stride(0)?"
        return "rows of the batch are mixed up: row b of keys and values is that of sessions[b]"
    if origin.head != right.head:
        return "heads are mixed up: the cache of a layer is [num_blocks, H, block_size, D], the keys are [B, H, D]"
    if origin.position != right.position:
        return "another token of the same session lies there: look at the position in the block"
    return "the elements of a head are in another order"


def place_of(cache: torch.Tensor, row: torch.Tensor) -> Place | None:
    """(block, head, slot) at which the D numbers of a head lie in a layer's cache [num_blocks, H, block_size, D]."""
    places = (_bits(cache) == _bits(row)).all(dim=-1).nonzero()
    return tuple(places[0].tolist()) if len(places) else None


# -- what nobody should have touched ---------------------------------------------------------------------------------


def look_at_guards(pool: Pool) -> None:
    """The memory before and behind each layer's cache is still NaN."""
    for which, storage in enumerate(pool.storage):
        for layer, numbers in enumerate(storage):
            cache = (pool.kv.k_layers, pool.kv.v_layers)[which][layer]
            before = (cache.data_ptr() - numbers.data_ptr()) // numbers.element_size()
            for where, guard in (("before", numbers[:before]), ("behind", numbers[before + cache.numel() :])):
                if not guard.isnan().all():
                    what = (
                        f"the part wrote {where} the {'KV'[which]} cache of layer {layer}, into memory that is not its"
                    )
                    row = pool.sizes.heads * pool.sizes.head_dim
                    reason = "an offset is too large: ((block × H + head) × block_size + slot) × D"
                    if row & (row - 1):
                        reason = f"H × D is {row}, no power of two: a kernel's row is longer; mask what lies behind it"
                    fail(pool, what, reason=reason, layer=layer)


def look_at_the_rest(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """What nobody had to write is what it was, bit by bit. Free slots of a block taken in this step do not count."""
    changed = _bits(pool.caches()) != _bits(before.caches)
    for t in batch:
        for layer, ids in enumerate(t.table):
            changed[:, layer, pool.index(ids[-1]), :, (t.length - 1) % pool.sizes.block_size] = False
            for block_id in ids:
                if block_id not in before.infos:
                    changed[:, layer, pool.index(block_id)] = False
    if not changed.any():
        return
    which, layer, block, head, slot, _ = (int(n) for n in changed.nonzero()[0])
    block_id = layer * pool.sizes.num_blocks + block
    holders = [t for t in pool.sessions if block_id in t.table[layer]]
    origin = pool.tags.origin(float(pool.caches()[which, layer, block, head, slot, 0]))
    writers = [t for t in holders if t in batch]
    whose = "which no session shows" if not holders else f"which belongs to {names_of(holders)}"
    what = f"the part wrote to slot {slot} of {block_name(pool, block_id)}, {whose}, where nothing was to be written"
    reason = "look at the block index and at the layer of the write"
    if writers:
        reason = "past the token's own slot: one slot for each session and layer is written, that of the new token"
    details = (f"found:    the {origin}",) if origin else ()
    fail(pool, what, *details, reason=reason, layer=layer, marked=[block_id] if holders else [])
