"""Reading the pool after a step: what is not as it has to be, said in plain words.

Each look raises `PartIsWrong` with the first thing that it finds. They come in the order in which one fault explains
the next: the lists of blocks, the lengths, the contents, the owners, and at last what nobody should have touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...errors import RosecourseError
from ...kv.blocks import KVBlockManager
from ...pictures.blocks import Picture, block_map
from ...pictures.sheet import counted
from .fault import Fault, PartIsWrong
from .tags import Origin

if TYPE_CHECKING:
    from .oracle import Before, Oracle, Tracked


def fail(
    oracle: Oracle, what: str, *details: str, reason: str = "", layer: int = 0, marked: Sequence[int] = ()
) -> NoReturn:
    """Raise `PartIsWrong`, with a picture of a layer, some blocks (ids) of it marked."""
    raise PartIsWrong(Fault(what, details, reason, picture=picture(oracle, layer, marked)))


def picture(oracle: Oracle, layer: int, marked: Sequence[int] = ()) -> Picture | None:
    """The blocks of a layer as they are. A session that cannot be drawn, its list being wrong, is left out."""
    tables: dict[str, Any] = {}
    drawn = None
    for tracked in [None, *oracle.sessions]:
        more = tables | ({tracked.name: tracked.table} if tracked else {})
        ids = {i for i in marked if i // oracle.sizes.num_blocks == layer}
        try:
            drawn = block_map(oracle.kv, more, layer, highlight=ids)
            tables = more
        except (RosecourseError, TypeError, AttributeError):
            continue
    return drawn


def block_name(oracle: Oracle, block_id: int) -> str:
    """A block as the pictures number it, and its id where that is another number."""
    layer, index = divmod(block_id, oracle.sizes.num_blocks)
    return f"block {index} of layer {layer}" + (f" (id {block_id})" if layer else "")


def names_of(tracked: Sequence[Tracked]) -> str:
    return ", ".join(t.name for t in tracked) or "no session"


# -- the manager and the sessions -------------------------------------------------------------------------------------


def look_at_manager(oracle: Oracle, as_made: Mapping[str, Any]) -> None:
    """The part may use the manager, and keep things of its own there, but put nothing in the place of what is there."""
    now = vars(oracle.kv)
    for name in sorted(set(as_made) | set(now)):
        replaced = now.get(name) is not as_made[name] if name in as_made else hasattr(KVBlockManager, name)
        if name in ("_num_cached",) and now.get(name) == as_made[name]:
            continue
        if replaced:
            fail(
                oracle,
                f"the part replaced kv.{name}: the manager is shared with prefill and with every other part",
                reason="write the new way into the part itself, and leave the manager as it is",
            )


def look_at_guards(oracle: Oracle) -> None:
    for which, storage in enumerate(oracle.storage):
        for layer, numbers in enumerate(storage):
            cache = (oracle.kv.k_layers, oracle.kv.v_layers)[which][layer]
            before = (cache.data_ptr() - numbers.data_ptr()) // numbers.element_size()
            for where, guard in (("before", numbers[:before]), ("behind", numbers[before + cache.numel() :])):
                if not guard.isnan().all():
                    what = (
                        f"the part wrote {where} the {'KV'[which]} cache of layer {layer}, into memory that is not its"
                    )
                    row = oracle.sizes.heads * oracle.sizes.head_dim
                    reason = "an offset is too large: ((block × H + head) × block_size + slot) × D"
                    if row & (row - 1):
                        reason = f"H × D is {row}, no power of two: a kernel's row is longer; mask what lies behind it"
                    fail(oracle, what, reason=reason, layer=layer)


def look_at_sessions(oracle: Oracle) -> None:
    for t in oracle.sessions:
        if t.session.num_cached_tokens != t.length:
            fail(
                oracle,
                f"session {t.name}: num_cached_tokens is {t.session.num_cached_tokens} after the step, not {t.length}",
                reason="the decode step itself counts the token; a part must not",
            )
        if t.session.token_ids != t.session.prompt_ids:
            fail(oracle, f"session {t.name}: the part changed its token_ids")


# -- lists of blocks --------------------------------------------------------------------------------------------------


def look_at_lists(oracle: Oracle, before: Before, batch: Sequence[Tracked]) -> None:
    """Each live session shows as many blocks of the layer as its tokens fill, and keeps those that it had."""
    for t in oracle.sessions:
        if not isinstance(t.table, list) or len(t.table) != oracle.sizes.layers:
            fail(oracle, f"session {t.name}: block_ids_per_layer is no longer a list of {oracle.sizes.layers} lists")
        for layer, ids in enumerate(t.table):
            _look_at_ids(oracle, t, layer, ids)
            then = before.lists[t.number][layer]
            if t not in batch and ids != then:
                fail(
                    oracle,
                    f"session {t.name} is not to be appended to, and its block list of layer {layer} has changed",
                    f"expected: {then}",
                    f"found:    {ids}",
                    reason="its list was taken for another session's; whose it is, the batch says, not its place",
                    layer=layer,
                    marked=ids,
                )
            _look_at_kept_blocks(oracle, before, t, layer, ids, then)
            _look_at_number_of_blocks(oracle, t, layer, ids, then)


def _look_at_ids(oracle: Oracle, t: Tracked, layer: int, ids: Any) -> None:
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        fail(oracle, f"session {t.name}: its block list of layer {layer} is {ids!s:.60}, not a list of whole numbers")
    for block_id in ids:
        where = f"session {t.name}: its block list of layer {layer}, {ids},"
        if not 0 <= block_id < oracle.sizes.layers * oracle.sizes.num_blocks:
            fail(oracle, f"{where} shows {block_id}, which is no block's id", layer=layer)
        if block_id // oracle.sizes.num_blocks != layer:
            of = block_id // oracle.sizes.num_blocks
            reason = f"allocated from layer {of}; or a block index, where the id (layer × num_blocks + index) belongs"
            fail(oracle, f"{where} shows {block_id}, a block of layer {of}", reason=reason, layer=layer)
        if not oracle.in_use(block_id):
            reason = "the block was given back while this session still shows it: owner count lowered too often?"
            fail(oracle, f"{where} shows {block_id}, which is free", reason=reason, layer=layer, marked=[block_id])
        if ids.count(block_id) > 1:
            fail(oracle, f"{where} shows {block_id} twice", layer=layer, marked=[block_id])


def _look_at_kept_blocks(
    oracle: Oracle, before: Before, t: Tracked, layer: int, ids: list[int], then: list[int]
) -> None:
    for n, block_id in enumerate(then):
        info = before.infos[block_id]
        full = info.length == oracle.sizes.block_size
        if n < len(ids) and (ids[n] == block_id or (info.owners > 1 and not full)):
            continue
        now = f"shows {block_name(oracle, ids[n])} in its place" if n < len(ids) else "does not show it any more"
        what = f"session {t.name} had {block_name(oracle, block_id)}, {'full' if full else 'its own'}, and {now}"
        reason = "a block of which the session is the only owner is written where it is"
        if full:
            reason = "a full block is never written again: it need not be copied, even if shared; a new one follows it"
        marked = [i for i in (block_id, *ids[n : n + 1]) if oracle.in_use(i)]
        fail(oracle, what, reason=reason, layer=layer, marked=marked)


def _look_at_number_of_blocks(oracle: Oracle, t: Tracked, layer: int, ids: list[int], then: list[int]) -> None:
    needed = oracle.blocks_needed(t.length)
    if len(ids) == needed:
        return
    tokens, blocks = counted(t.length, "token"), counted(needed, "block")
    what = f"session {t.name} has {tokens}: {blocks}; it shows {len(ids)} in layer {layer}"
    if len(ids) > needed:
        reason = f"a new block was taken though the last one had a free slot (block_size is {oracle.sizes.block_size})"
    elif needed > len(then):
        reason = "nothing was appended, or the new block was not put into the session's list"
    else:
        reason = "a block was removed from the list"
    fail(oracle, what, f"its list: {ids}", reason=reason, layer=layer, marked=ids)


# -- lengths ----------------------------------------------------------------------------------------------------------


def look_at_shared_blocks(oracle: Oracle, before: Before, batch: Sequence[Tracked]) -> None:
    """Whoever has written has the block to itself."""
    for t in batch:
        for layer, ids in enumerate(t.table):
            holders = [s for s in oracle.sessions if ids[-1] in s.table[layer]]
            if len(holders) == 1:
                continue
            others = [s for s in holders if s is not t]
            own = "a copy of its own" if ids[-1] in before.infos else "a new block of its own"
            shown = f"{block_name(oracle, ids[-1])}, which {names_of(others)} {'share' if others[1:] else 'shares'}"
            what = f"position {t.length - 1} of session {t.name} was to go into {own}; {t.name} still shows {shown}"
            reason = "a shared block that is not full is copied before one of its owners writes (copy-on-write)"
            info = oracle.info(ids[-1])
            if info.start + info.length < t.length:
                reason = _LEFT_OUT.format(t.name)
            fail(oracle, what, reason=reason, layer=layer, marked=ids[-1:])


def look_at_lengths(oracle: Oracle, before: Before) -> None:
    """Each block begins at the position at which it has to, and counts as many tokens as are in it."""
    size = oracle.sizes.block_size
    for t in oracle.sessions:
        for layer, ids in enumerate(t.table):
            for n, block_id in enumerate(ids):
                info, start = oracle.info(block_id), n * size
                length = min(size, t.length - start)
                where = f"session {t.name}: {block_name(oracle, block_id)}, its {_nth(n)},"
                if (info.layer, info.block_index) != divmod(block_id, oracle.sizes.num_blocks):
                    fail(oracle, f"{where} is described as another block: {info}", layer=layer)
                if info.start != start:
                    what = f"{where} says that it begins at position {info.start}; it begins at {start}"
                    reason = "a new block's start is the position of its first token: the start before it + its length"
                    fail(oracle, what, reason=reason, layer=layer, marked=[block_id])
                if info.length != length:
                    are = "is" if length == 1 else "are"
                    what = f"{where} counts {counted(info.length, 'token')}; {length} {are} to be in it"
                    reason = _why_length(oracle, before, t, layer, block_id, info.length - length)
                    fail(oracle, what, reason=reason, layer=layer, marked=[block_id])


def _nth(n: int) -> str:
    return {0: "first", 1: "second", 2: "third"}.get(n, f"number {n + 1}")


def _why_length(oracle: Oracle, before: Before, t: Tracked, layer: int, block_id: int, more: int) -> str:
    if more > 0:
        left_out = [n for n, ids in enumerate(t.table) if not ids or _end(oracle, ids) < t.length]
        instead = f", or the lists of layer {layer} were given for layer {left_out[0]}" if left_out else ""
        return f"the length was raised more than once for one token{instead}"
    if _find(oracle.caches()[0, layer], t.dense[0, layer, -1, 0]) is None:
        return _LEFT_OUT.format(t.name)
    reason = "K and V were written, and the block's length was not raised after it"
    gone = (info for info, length in before.gone if info.length > length)
    if any((info.layer, info.block_index) == divmod(block_id, oracle.sizes.num_blocks) for info in gone):
        reason += "; it was raised in the info of a block that has been freed: ask `kv.info` anew"
    return reason


def _end(oracle: Oracle, ids: list[int]) -> int:
    info = oracle.info(ids[-1])
    return info.start + info.length if info else 0


_LEFT_OUT = "nothing was written for session {} in this layer: it was left out"


# -- contents ---------------------------------------------------------------------------------------------------------


def look_at_contents(oracle: Oracle, before: Before, batch: Sequence[Tracked]) -> None:
    """Every slot of every live session, read through its block table, holds what was appended there."""
    caches = oracle.caches()
    for t in oracle.sessions:
        for layer, ids in enumerate(t.table):
            if not t.length:
                continue
            blocks = [oracle.index(i) for i in ids]
            found = caches[:, layer, blocks].transpose(2, 3).flatten(1, 2)[:, : t.length]  # [2, length, H, D]
            wrong = _bits(found) != _bits(t.dense[:, layer])
            if wrong.any():
                _tell(oracle, before, t, layer, found, wrong)


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    """The same numbers as integers: NaN equals itself."""
    return numbers.contiguous().view(torch.int16 if numbers.element_size() == 2 else torch.int32)


def _tell(oracle: Oracle, before: Before, t: Tracked, layer: int, found: torch.Tensor, wrong: torch.Tensor) -> NoReturn:
    which, position, head, _ = (int(n) for n in wrong.nonzero()[0])
    block_id, slot = t.table[layer][position // oracle.sizes.block_size], position % oracle.sizes.block_size
    old = before.caches[which, layer, oracle.index(block_id), head, slot]
    right, there = t.dense[which, layer, position, head], found[which, position, head]
    origin, belongs = (oracle.tags.origin(float(row[0])) for row in (there, right))
    rounded = any(torch.equal(right.to(d).to(right.dtype), there) for d in (torch.float16, torch.bfloat16))
    heads = [h for h in range(oracle.sizes.heads) if wrong[which, position, h].any()]
    in_heads = "" if len(heads) == oracle.sizes.heads else f", in head {', '.join(map(str, heads))} alone,"
    untouched = torch.equal(_bits(there), _bits(old))
    where = f"position {position} of session {t.name} in layer {layer}{in_heads}"
    if untouched:
        what = f"{where} was never written: its {'KV'[which]} slot holds what was there before the step"
    else:
        content = f"the {origin}" if origin else f"a rounded {'KV'[which]}" if rounded else f"no token's {'KV'[which]}"
        what = f"{where} holds {content}"
    caches = oracle.caches()[which]
    found_in = [(n, place) for n, cache in enumerate(caches) if (place := _find(cache, right))]
    lies = next(((n, place) for n, place in found_in if n == layer), found_in[0] if found_in else None)
    details = [
        f"expected: the {belongs}",
        f"found:    {f'the {origin}' if origin else there.tolist()}",
        f"slot:     {slot} of {block_name(oracle, block_id)}",
    ]
    if lies:
        other, (block, other_head, other_slot) = lies
        name = block_name(oracle, block + other * oracle.sizes.num_blocks)
        in_head = f", in head {other_head}" if other_head != head else ""
        details.append(f"what belongs there lies in slot {other_slot} of {name}{in_head}")
    reason = _why(t, position, origin, untouched, lies, belongs, rounded)
    fail(oracle, what, *details, reason=reason, layer=layer, marked=[block_id])


def _why(
    t: Tracked, position: int, origin: Origin | None, untouched: bool, lies: tuple | None, right: Origin, rounded: bool
) -> str:
    """What it is likely to come from that `origin` is where `right` belongs."""
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


def _find(cache: torch.Tensor, row: torch.Tensor) -> tuple[int, int, int] | None:
    """(block, head, slot) at which the D numbers of a head lie in a layer's cache [num_blocks, H, block_size, D]."""
    places = (_bits(cache) == _bits(row)).all(dim=-1).nonzero()
    return tuple(places[0].tolist()) if len(places) else None


# -- owners -----------------------------------------------------------------------------------------------------------


def look_at_owners(oracle: Oracle, before: Before) -> None:
    """Each block in use is shown by a session, and counts as many owners as sessions show it."""
    for block_id in range(oracle.sizes.layers * oracle.sizes.num_blocks):
        info = oracle.info(block_id)
        if info is None:
            continue
        layer = block_id // oracle.sizes.num_blocks
        holders = [t for t in oracle.sessions if block_id in t.table[layer]]
        where = block_name(oracle, block_id)
        owners = counted(info.owners, "owner")
        if not holders:
            what = f"{where} counts {owners}, and no session shows it: it never comes back (a leak)"
            reason = "whoever copies a shared block leaves it: its owner count goes down by one, and at 0 it is free"
            if block_id not in before.infos:
                reason = "a block was allocated and then not used"
            fail(oracle, what, reason=reason, layer=layer, marked=[block_id])
        if info.owners != len(holders):
            shown = f"{len(holders)} session{'s show' if len(holders) > 1 else ' shows'} it ({names_of(holders)})"
            reason = "too few: it would be given away while it is in use; a block of one's own counts one owner"
            if info.owners > len(holders):
                reason = "whoever copies a shared block leaves it: its owner count goes down by one"
            what = f"{where} counts {owners}, and {shown}"
            fail(oracle, what, reason=reason, layer=layer, marked=[block_id])


# -- the rest ---------------------------------------------------------------------------------------------------------


def look_at_the_rest(oracle: Oracle, before: Before, batch: Sequence[Tracked]) -> None:
    """What nobody had to write is what it was, bit by bit. Free slots of a block taken in this step do not count."""
    changed = _bits(oracle.caches()) != _bits(before.caches)
    for t in batch:
        for layer, ids in enumerate(t.table):
            changed[:, layer, oracle.index(ids[-1]), :, (t.length - 1) % oracle.sizes.block_size] = False
            for block_id in ids:
                if block_id not in before.infos:
                    changed[:, layer, oracle.index(block_id)] = False
    if not changed.any():
        return
    which, layer, block, head, slot, _ = (int(n) for n in changed.nonzero()[0])
    block_id = layer * oracle.sizes.num_blocks + block
    holders = [t for t in oracle.sessions if block_id in t.table[layer]]
    origin = oracle.tags.origin(float(oracle.caches()[which, layer, block, head, slot, 0]))
    writers = [t for t in holders if t in batch]
    whose = "which no session shows" if not holders else f"which belongs to {names_of(holders)}"
    what = f"the part wrote to slot {slot} of {block_name(oracle, block_id)}, {whose}, where nothing was to be written"
    reason = "look at the block index and at the layer of the write"
    if writers:
        reason = "past the token's own slot: one slot for each session and layer is written, that of the new token"
    details = (f"found:    the {origin}",) if origin else ()
    fail(oracle, what, *details, reason=reason, layer=layer, marked=[block_id] if holders else [])
