"""Judges of the books: block lists, lengths and owners, and what a part must not touch.

Each looks at one thing and raises `PartIsWrong` with the first fault that it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...pictures.sheet import counted
from .causes import Cause
from .misplaced import block_written, left_out
from .number_judges import look_at_contents
from .owner_judges import look_at_owners_of
from .pool import Before, Pool, Tracked
from .telling import block_name, fail, names_of

LEFT_OUT = "nothing was written for session {} in this layer: it was left out"


def look_at_books(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """Lists, copies and lengths: the order is that in which one fault explains the next."""
    look_at_lists(pool, before, batch)
    look_at_shared_blocks(pool, before, batch)
    look_at_lengths(pool, before, batch)


# -- the manager and the sessions -------------------------------------------------------------------------------------


def look_at_manager(pool: Pool, as_made: Mapping[str, Any]) -> None:
    """The part may use the manager and keep things of its own there, but replace nothing.

    as_made: the manager's attributes before the part was built.
    """
    now = vars(pool.kv)
    for name in sorted((set(as_made) | set(now)) - pool.layout.changes):
        replaced = now.get(name) is not as_made[name] if name in as_made else hasattr(pool.layout.cache, name)
        if replaced:
            fail(
                pool,
                Cause.TAMPERING,
                f"the part replaced kv.{name}: the manager is shared with prefill and with every other part",
                reason="write the new way into the part itself, and leave the manager as it is",
            )


def look_at_sessions(pool: Pool) -> None:
    """The part leaves the sessions' tokens and their number alone."""
    for t in pool.sessions:
        if t.session.num_cached_tokens != t.length:
            fail(
                pool,
                Cause.BOOKS_WRONG,
                f"session {t.name}: num_cached_tokens is {t.session.num_cached_tokens} after the step, not {t.length}",
                reason="the decode step itself counts the token; a part must not",
            )
        if t.session.token_ids != t.session.prompt_ids:
            fail(pool, Cause.INPUTS_CHANGED, f"session {t.name}: the part changed its token_ids")


# -- lists of blocks --------------------------------------------------------------------------------------------------


def look_at_lists(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """Each live session shows as many blocks of the layer as its tokens fill, and keeps those that it had."""
    for t in pool.sessions:
        if not isinstance(t.table, list) or len(t.table) != pool.sizes.layers:
            what = f"session {t.name}: block_ids_per_layer is no longer a list of {pool.sizes.layers} lists"
            fail(pool, Cause.BOOKS_WRONG, what)
        for layer, ids in enumerate(t.table):
            _look_at_ids(pool, t, layer, ids)
            then = before.lists[t.number][layer]
            if t not in batch and ids != then:
                fail(
                    pool,
                    Cause.WRONG_SESSION,
                    f"session {t.name} is not to be appended to, and its block list of layer {layer} has changed",
                    f"expected: {then}",
                    f"found:    {ids}",
                    reason="its list was taken for another session's; whose it is, the batch says, not its place",
                    layer=layer,
                    marked=ids,
                )
            _look_at_kept_blocks(pool, before, t, layer, ids, then)
            _look_at_number_of_blocks(pool, before, batch, t, layer)


def _look_at_ids(pool: Pool, t: Tracked, layer: int, ids: Any) -> None:
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        what = f"session {t.name}: its block list of layer {layer} is {ids!s:.60}, not a list of whole numbers"
        fail(pool, Cause.BOOKS_WRONG, what)
    for block_id in ids:
        where = f"session {t.name}: its block list of layer {layer}, {ids},"
        if not 0 <= block_id < pool.sizes.layers * pool.sizes.num_blocks:
            fail(pool, Cause.BOOKS_WRONG, f"{where} shows {block_id}, which is no block's id", layer=layer)
        if block_id // pool.sizes.num_blocks != layer:
            of = block_id // pool.sizes.num_blocks
            reason = f"allocated from layer {of}; or a block index, where the id (layer × num_blocks + index) belongs"
            what = f"{where} shows {block_id}, a block of layer {of}"
            fail(pool, Cause.BOOKS_WRONG, what, reason=reason, layer=layer)
        if not pool.in_use(block_id):
            reason = "the block was given back while this session still shows it: owner count lowered too often?"
            what = f"{where} shows {block_id}, which is free"
            fail(pool, Cause.BOOKS_WRONG, what, reason=reason, layer=layer, marked=[block_id])
        if ids.count(block_id) > 1:
            fail(pool, Cause.BOOKS_WRONG, f"{where} shows {block_id} twice", layer=layer, marked=[block_id])


def _look_at_kept_blocks(pool: Pool, before: Before, t: Tracked, layer: int, ids: list[int], then: list[int]) -> None:
    for n, block_id in enumerate(then):
        info = before.infos[block_id]
        full = info.length == pool.sizes.block_size
        if n < len(ids) and (ids[n] == block_id or (info.owners > 1 and not full)):
            continue
        now = f"shows {block_name(pool, ids[n])} in its place" if n < len(ids) else "does not show it any more"
        what = f"session {t.name} had {block_name(pool, block_id)}, {'full' if full else 'its own'}, and {now}"
        reason = "a block of which the session is the only owner is written where it is"
        if full:
            reason = "a full block is never written again: it need not be copied, even if shared; a new one follows it"
        marked = [i for i in (block_id, *ids[n : n + 1]) if pool.in_use(i)]
        fail(pool, Cause.BOOKS_WRONG, what, reason=reason, layer=layer, marked=marked)


def _look_at_number_of_blocks(pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked, layer: int) -> None:
    ids, then = t.table[layer], before.lists[t.number][layer]
    needed = pool.blocks_needed(t.length)
    if len(ids) == needed:
        return
    cause = Cause.ROLLOVER_MISSED
    tokens, blocks = counted(t.length, "token"), counted(needed, "block")
    what = f"session {t.name} has {tokens}: {blocks}; it shows {len(ids)} in layer {layer}"
    if len(ids) > needed:
        reason = f"a new block was taken though the last one had a free slot (block_size is {pool.sizes.block_size})"
        if _counts_too_many(pool, before, t, layer):
            cause = Cause.BOOKS_WRONG
            reason = f"the block before it counts {pool.sizes.block_size} tokens, and holds fewer: who raised it?"
        if other := _whose_token(pool, before, batch, t, layer):
            cause, reason = Cause.WRONG_SESSION, f"the token of session {other.name} lies in it: whose list was given?"
    elif needed <= len(then):
        cause, reason = Cause.BOOKS_WRONG, "a block was removed from the list"
    elif taken := _taken_and_not_shown(pool, before, layer):
        cause, reason = (
            Cause.BOOKS_WRONG,
            f"{block_name(pool, taken)} was taken; the new block was not put into the list",
        )
    elif (block := block_written(pool, before, t, layer)) is not None:
        name = block_name(pool, block)
        reason = f"the token went into {name}: a full block is followed by a new one, which is put into the list"
    else:
        cause = left_out(pool, before, batch)
        reason = "nothing was appended, or the new block was not put into the session's list"
    fail(pool, cause, what, f"its list: {ids}", reason=reason, layer=layer, marked=ids)


def _whose_token(pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked, layer: int) -> Tracked | None:
    """Whose token lies in the last block of a session, if it is another one's."""
    others = (s for s in batch if s is not t and t.table[layer][-1] not in s.table[layer])
    return next((s for s in others if block_written(pool, before, s, layer) == t.table[layer][-1]), None)


def _counts_too_many(pool: Pool, before: Before, t: Tracked, layer: int) -> bool:
    """Whether the block that was a session's last one is taken for full, and has a free slot."""
    then = before.lists[t.number][layer]
    if not then or not pool.in_use(then[-1]) or before.infos[then[-1]].length == pool.sizes.block_size:
        return False
    return (
        pool.info_in_use(then[-1]).length > before.infos[then[-1]].length
        and block_written(pool, before, t, layer) != then[-1]
    )


def _taken_and_not_shown(pool: Pool, before: Before, layer: int) -> int | None:
    """The id of a block that was allocated in the step, and that no session shows."""
    shown = {block_id for t in pool.sessions for block_id in t.table[layer]}
    first = layer * pool.sizes.num_blocks
    taken = (i for i in range(first, first + pool.sizes.num_blocks) if pool.in_use(i) and i not in before.infos)
    return next((i for i in taken if i not in shown), None)


# -- lengths ----------------------------------------------------------------------------------------------------------


def look_at_shared_blocks(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """A session that has written has its last block to itself."""
    for t in batch:
        for layer, ids in enumerate(t.table):
            holders = [s for s in pool.sessions if ids[-1] in s.table[layer]]
            if len(holders) == 1:
                continue
            others = [s for s in holders if s is not t]
            own = "a copy of its own" if ids[-1] in before.infos else "a new block of its own"
            shown = f"{block_name(pool, ids[-1])}, which {names_of(others)} {'share' if others[1:] else 'shares'}"
            what = f"position {t.length - 1} of session {t.name} was to go into {own}; {t.name} still shows {shown}"
            cause, reason = _why_shared(pool, before, batch, t, others, layer)
            fail(pool, cause, what, reason=reason, layer=layer, marked=ids[-1:])


def _why_shared(
    pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked, others: Sequence[Tracked], layer: int
) -> tuple[Cause, str]:
    """Why a session that has written shows a block that others show too."""
    block = t.table[layer][-1]
    if block not in before.infos:
        return Cause.BOOKS_WRONG, "one new block was put into several lists: each session takes one of its own"
    written = (block_written(pool, before, s, layer) for s in others if s in batch)
    if block_written(pool, before, t, layer) is None and block not in written:  # none has gone over the other's token
        return left_out(pool, before, batch), LEFT_OUT.format(t.name)
    return Cause.COW_MISSED, "a shared block that is not full is copied before one of its owners writes (copy-on-write)"


def look_at_lengths(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """Each block begins at the position at which it has to, and counts as many tokens as are in it."""
    size = pool.sizes.block_size
    for t in pool.sessions:
        for layer, ids in enumerate(t.table):
            for n, block_id in enumerate(ids):
                info, start = pool.info_in_use(block_id), n * size
                length = min(size, t.length - start)
                where = f"session {t.name}: {block_name(pool, block_id)}, its {_nth(n)},"
                if (info.layer, info.block_index) != divmod(block_id, pool.sizes.num_blocks):
                    fail(pool, Cause.BOOKS_WRONG, f"{where} is described as another block: {info}", layer=layer)
                if info.start != start:
                    what = f"{where} says that it begins at position {info.start}; it begins at {start}"
                    reason = "a new block's start is the position of its first token: the start before it + its length"
                    fail(pool, Cause.BOOKS_WRONG, what, reason=reason, layer=layer, marked=[block_id])
                if info.length != length:
                    are = "is" if length == 1 else "are"
                    what = f"{where} counts {counted(info.length, 'token')}; {length} {are} to be in it"
                    cause = _length_cause(pool, before, batch, t, layer, info.length - length)
                    reason = _why_length(pool, before, t, layer, block_id, info.length - length)
                    fail(pool, cause, what, reason=reason, layer=layer, marked=[block_id])


def _length_cause(pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked, layer: int, more: int) -> Cause:
    """Of a length that is wrong. A token that went into another block explains it: then that raises `PartIsWrong`.

    more: by how much it is too large.
    """
    if t not in batch:
        return Cause.BOOKS_WRONG
    block = block_written(pool, before, t, layer)
    if block is None:
        return left_out(pool, before, batch)
    if block != t.table[layer][-1]:
        look_at_contents(pool, before, batch)
    if more > 0 and _layers_left_out(pool, t):
        return Cause.WRONG_LAYER
    return Cause.BOOKS_WRONG


def _nth(n: int) -> str:
    return {0: "first", 1: "second", 2: "third"}.get(n, f"number {n + 1}")


def _why_length(pool: Pool, before: Before, t: Tracked, layer: int, block_id: int, more: int) -> str:
    if more > 0:
        others = _layers_left_out(pool, t)
        if others:
            return f"it was raised for layer {others[0]}, too: the lists of layer {layer} were given for that one"
        return "the length was raised more than once for one token"
    if block_written(pool, before, t, layer) is None:
        return LEFT_OUT.format(t.name)
    reason = "K and V were written, and the block's length was not raised after it"
    gone = (info for info, length in before.gone if info.length > length)
    if any((info.layer, info.block_index) == divmod(block_id, pool.sizes.num_blocks) for info in gone):
        reason += "; it was raised in the info of a block that has been freed: ask `kv.info` anew"
    return reason


def _layers_left_out(pool: Pool, t: Tracked) -> list[int]:
    """The layers whose lists end before the last token of a session."""
    return [n for n, ids in enumerate(t.table) if not ids or _end(pool, ids) < t.length]


def _end(pool: Pool, ids: list[int]) -> int:
    info = pool.info(ids[-1])
    return info.start + info.length if info else 0


# -- owners -----------------------------------------------------------------------------------------------------------


def look_at_owners(pool: Pool, before: Before) -> None:
    """Each block in use is shown by a session, and counts as many owners as sessions show it."""
    for block_id in sorted(pool.kv.blocks_in_use):
        layer = block_id // pool.sizes.num_blocks
        holders = [t for t in pool.sessions if block_id in t.table[layer]]
        where = block_name(pool, block_id)
        look_at_owners_of(pool, before, block_id, holders, where, layer=layer, marked=[block_id])
