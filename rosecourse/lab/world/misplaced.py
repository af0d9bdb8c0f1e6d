"""K and V that are not where they belong: what lies there instead, where they went, and which cause that shows.

A row is the K or the V of one token in one layer, [H, D]. All wrong rows of a step are looked at together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from .causes import Cause
from .pool import NEVER_FULL, Before, Pool, Tracked, bits
from .tags import AROUND, Origin

Place = tuple[int, int, int, int, int]  # K or V, layer, block, head, slot
MOST = 400  # wrong rows that are looked at
KV = "KV"


def differ(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Where numbers have changed; one NaN is as good as another, for it may be copied to its own place."""
    return (bits(now) != bits(before)) & ~(now.isnan() & before.isnan())


class Written:
    """The cells of the caches, D numbers each, that are not what they were before a step."""

    def __init__(self, pool: Pool, before: Before) -> None:
        self.now = pool.caches()
        changed = differ(self.now, before.caches).any(dim=-1)  # [2, L, num_blocks, H, block_size]
        self._places: dict[bytes, list[Place]] = {}  # numbers -> where they have been written
        for numbers, place in zip(bits(self.now[changed]).numpy(), changed.nonzero().tolist(), strict=True):
            self._places.setdefault(numbers.tobytes(), []).append(tuple(place))

    def places_of(self, numbers: torch.Tensor) -> list[Place]:
        """Where D numbers have been written."""
        return self._places.get(bits(numbers).numpy().tobytes(), [])


@dataclass(frozen=True)
class Row:
    """A row that is wrong. right, there, old: [H, D], as it must be, as it is, and as that slot was before the step.

    new: whether it is the row that the step had to write. copied: whether its block is a copy made in the step, or the
    original of one. originals: the same slot of the block that was copied, before the step and after it; none without a
    copy.
    """

    tracked: Tracked
    which: int
    layer: int
    position: int
    block: int
    slot: int
    right: torch.Tensor
    there: torch.Tensor
    old: torch.Tensor
    new: bool
    copied: bool
    originals: tuple[torch.Tensor, ...]

    @cached_property
    def wrong(self) -> torch.Tensor:
        """[H, D], where it is wrong."""
        return bits(self.there) != bits(self.right)

    @property
    def head(self) -> int:
        """The first head that is wrong."""
        return int(self.wrong.any(dim=-1).nonzero()[0])

    @property
    def untouched(self) -> bool:
        """Whether all that is wrong is as it was."""
        return bool((bits(self.there) == bits(self.old))[self.wrong].all())


@dataclass(frozen=True)
class Finding:
    """What was found out about a row. lies: where the row went, its first head. or_else: as of a `Fault`."""

    cause: Cause
    reason: str
    lies: Place | None = None
    or_else: Cause | None = None


class Misplaced:
    """The wrong rows of a step, and the cells of the caches that it has changed."""

    def __init__(self, pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
        self.pool, self.before, self.batch = pool, before, batch
        self.written = Written(pool, before)
        self.now = self.written.now
        self.tokens = {(t.number, t.length - 1) for t in batch}
        self.rows = self._rows()

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for t in self.pool.sessions:
            for layer, ids in enumerate(self.pool.lists(t)):
                if not t.length or len(ids) < self.pool.blocks_needed(t.length):
                    continue
                blocks = [self.pool.index(i) for i in ids]
                read = self.now[:, layer, blocks].transpose(2, 3).flatten(1, 2)[:, : t.length]  # [2, length, H, D]
                wrong = (bits(read) != bits(t.dense[:, layer])).flatten(2).any(dim=-1)
                for which, position in wrong.nonzero().tolist()[: MOST - len(rows)]:
                    rows.append(self._row(t, which, layer, position, read[which, position]))
        return rows

    def _row(self, t: Tracked, which: int, layer: int, position: int, there: torch.Tensor) -> Row:
        n, slot = divmod(position, self.pool.sizes.block_size)
        block_id = self.pool.lists(t)[layer][n]
        block, then = self.pool.index(block_id), self.before.lists[t.number][layer]
        is_copy = n < len(then) and then[n] != block_id
        old = self.before.caches[which, layer, block, :, slot]
        caches = (self.before.caches, self.now) if is_copy else ()
        return Row(
            tracked=t,
            which=which,
            layer=layer,
            position=position,
            block=block,
            slot=slot,
            right=t.dense[which, layer, position],
            there=there,
            old=old,
            new=(t.number, position) in self.tokens,
            copied=is_copy or self._was_left(layer, block_id),
            originals=tuple(each[which, layer, self.pool.index(then[n]), :, slot] for each in caches),
        )

    def _was_left(self, layer: int, block_id: int) -> bool:
        """Whether a session of the batch has replaced the block by a copy in this step."""
        had = (t for t in self.batch if block_id in self.before.lists[t.number][layer])
        return any(block_id not in self.pool.lists(t)[layer] for t in had)

    @property
    def has_kernels(self) -> bool:
        """Whether kernels may be launched: they find rows by their addresses, and can get beyond a tensor."""
        return self.pool.sizes.gates[0] < NEVER_FULL

    # -- the cause ----------------------------------------------------------------------------------------------------

    def told(self) -> tuple[Row, Finding]:
        """The row that shows the cause best, and what was found out about it."""
        copies = [row for row in self.rows if self._shows_a_bad_copy(row)]
        if copies:
            return copies[0], Finding(Cause.COW_PARTIAL, self._why_copy(copies[0]))
        new = [row for row in self.rows if row.new]
        if not new:
            return self.rows[0], self._overwritten(self.rows[0])
        found = [(row, self._of(row)) for row in new]
        counted = Counter(finding.cause for _, finding in found)
        lost = {Cause.NOTHING_WRITTEN, Cause.HALF_WRITTEN}
        least = Cause.HALF_WRITTEN if Cause.HALF_WRITTEN in counted else found[0][1].cause
        # Where as many rows went elsewhere as others stand in their places, places were found wrongly: mixed-up rows
        # leave hardly any place as it was.
        order = sorted(counted, key=lambda cause: cause is Cause.WRONG_SESSION and len(self.batch) > 2)
        most = max((cause for cause in order if cause not in lost), key=counted.__getitem__, default=least)
        return next((row, finding) for row, finding in found if finding.cause == most)

    def _shows_a_bad_copy(self, row: Row) -> bool:
        if not row.copied:
            return False
        if not row.new:
            return self.is_foreign(row.which, row.layer, row.block, row.head, row.slot)
        after = any(torch.equal(bits(row.there), bits(original)) for original in row.originals)
        return after and not torch.equal(bits(row.there), bits(row.old)) and self._lies(row) is None

    def _why_copy(self, row: Row) -> str:
        if row.new:
            return "the copy was made after the token had been written, and went over it: copy first"
        if not row.originals:
            return "the original itself was written: copy from the shared block into the new one, not the other way"
        if row.untouched:
            both = {r.which for r in self.rows if r.copied and not r.new}
            if len(both) == 1:
                return f"the tokens before this one were copied for {KV[1 - row.which]} and not for {KV[row.which]}"
            if self._copied_nothing(row):
                where = f"into the new one in layer {row.layer}"
                return f"nothing of the shared block was copied {where}: was this copy left out, or made elsewhere?"
            return "the copy has too few slots: as many as the shared block has tokens belong into it, for K and for V"
        return "the copy holds what was in another place: which block and which slots does it come from?"

    def _copied_nothing(self, row: Row) -> bool:
        """Whether all that belongs into this copy, in this layer, is untouched."""
        same = (row.tracked, row.which, row.layer)
        rows = [r for r in self.rows if r.copied and not r.new and (r.tracked, r.which, r.layer) == same]
        kept = (row.tracked.length - 1) % self.pool.sizes.block_size
        return len(rows) == kept and all(r.untouched for r in rows)

    def _overwritten(self, row: Row) -> Finding:
        """Of a row of an earlier step, where all that the step had to write is right."""
        if self.is_foreign(row.which, row.layer, row.block, row.head, row.slot):
            if not self.has_kernels:
                reason = "what was written there is no row of this step: which block is cleared, or copied into?"
                return Finding(Cause.OLD_TOKENS_CHANGED, reason)
            reason = "what was written there is no row of this step: it was read, or written, outside"
            return Finding(Cause.OUTSIDE, reason)
        return Finding(
            Cause.OLD_TOKENS_CHANGED,
            "the new tokens are right, and one of them was also written here: padding, or a default block or slot?",
        )

    def is_foreign(self, which: int, layer: int, block: int, head: int, slot: int) -> bool:
        """Whether a cell of the caches holds anything but the row of a token of this step for this head of K or V."""
        origin = self.origin_of(self.now[which, layer, block, head, slot])
        same = origin and (origin.which, origin.layer, origin.head) == (which, layer, head)
        return not (origin and same and (origin.session, origin.position) in self.tokens)

    def origin_of(self, numbers: torch.Tensor) -> Origin | None:
        """Whose the D numbers of a head are, if they are one head of one row."""
        first = self.pool.tags.origin(float(numbers[0]))
        if first is None or first.element:
            return None
        others = (self.pool.tags.origin(float(number)) for number in numbers)
        in_order = all(other == replace(first, element=n) for n, other in enumerate(others))
        return first if in_order else None

    # -- one row ------------------------------------------------------------------------------------------------------

    def _of(self, row: Row) -> Finding:
        lies = self._lies(row)
        if row.untouched:
            return self._went(row, lies) if lies else self._lost(row)
        changed = how_changed(row.right, row.there, row.old)
        origin = self.origin_of(row.there[row.head])
        if changed and (origin is None or (origin.session, origin.layer) == (row.tracked.number, row.layer)):
            return Finding(Cause.VALUES_CHANGED, changed)
        if origin is None:
            return self._no_row(row, lies)
        return self._of_another(row, origin, lies)

    def _lies(self, row: Row) -> Place | None:
        """Where a row went in this step: the place of its first wrong head."""
        places = self.written.places_of(row.right[row.head])
        places = [p for p in places if p != (row.which, row.layer, row.block, row.head, row.slot)]
        near = [(p[1] != row.layer, p[0] != row.which, p[2] != row.block, n) for n, p in enumerate(places)]
        return places[min(near)[-1]] if places else None

    def _went(self, row: Row, lies: Place) -> Finding:
        """A row whose own place was left as it was, and that lies elsewhere."""
        which, layer, block, head, slot = lies
        if layer != row.layer:
            return Finding(Cause.WRONG_LAYER, f"it was written to the cache of layer {layer}", lies)
        if which != row.which:
            reason = f"{KV[row.which]} went into the cache of {KV[which]}: K and V are swapped"
            return Finding(Cause.K_V_SWAPPED, reason, lies)
        reason = "the right numbers went to another slot: look at the "
        if block != row.block and slot == row.slot and head == row.head:
            reason += "block index: whose list does it come from, and which entry of it?"
            return Finding(Cause.WRONG_BLOCK, reason, lies)
        if block == row.block or self._stays_in_block(row):
            return Finding(Cause.WRONG_SLOT, reason + "position in the block", lies)
        return Finding(
            Cause.WRONG_SLOT, reason + "block index and at the position in the block", lies, Cause.WRONG_BLOCK
        )

    def _stays_in_block(self, row: Row) -> bool:
        """Whether some head of the row lies in its own block."""
        cells = self.now[row.which, row.layer, row.block].flatten(0, 1)
        return any(bool((bits(cells) == bits(head)).all(dim=-1).any()) for head in row.right)

    def _lost(self, row: Row) -> Finding:
        """A row whose place was left as it was, and that lies nowhere."""
        name, which = row.tracked.name, KV[row.which]
        summed = f"the K or V of session {name} was not written, or only for some heads or sessions"
        if not row.wrong.all():
            return Finding(
                Cause.HALF_WRITTEN, f"the rest of this {which} was written: look at the heads and dimensions"
            )
        alike = [t for t in self.batch if self._kind(t, row.layer) == self._kind(row.tracked, row.layer)]
        wrong = {(r.tracked.number, r.layer, r.which) for r in self.rows if r.new}
        if (row.tracked.number, row.layer, 1 - row.which) not in wrong:
            return Finding(Cause.HALF_WRITTEN, f"{KV[1 - row.which]} was written, and {which} was not")
        if any((t.number, layer, row.which) not in wrong for t in alike for layer in self._layers_of_kind(row)):
            return Finding(Cause.HALF_WRITTEN, summed)
        return Finding(Cause.NOTHING_WRITTEN, summed + "; an assignment to a copy of the cache changes nothing")

    def _layers_of_kind(self, row: Row) -> list[int]:
        kind = self._kind(row.tracked, row.layer)
        return [layer for layer in range(self.pool.sizes.layers) if self._kind(row.tracked, layer) == kind]

    def _kind(self, t: Tracked, layer: int) -> str:
        """What a session needed in this step, in one layer."""
        then = self.before.lists[t.number][layer]
        if len(then) < self.pool.blocks_needed(t.length):
            return "a new block"
        return "a copy" if self.before.infos[then[-1]].owners > 1 else "a slot"

    def _no_row(self, row: Row, lies: Place | None) -> Finding:
        """What lies there is not a row of anybody."""
        if lies and lies[2:] == (row.block, row.head + 1, row.slot):
            reason = "the slot is past the block's end, and the next head begins there: a position in the session?"
            return Finding(Cause.WRONG_SLOT, reason, lies)
        origins = [self.pool.tags.origin(float(n)) for n in row.there[row.wrong]]
        if any(origins):
            reason = "numbers of several rows: these may lie further apart than H × D; their `stride(0)` says how far"
            return Finding(Cause.VALUES_CHANGED, reason, lies)
        if lies:
            return self._went(row, lies)
        if bool((row.there[row.wrong] == AROUND).all()):
            reason = "this lies between rows, which lie further apart than H × D: their `stride(0)` says how far"
            return Finding(Cause.VALUES_CHANGED, reason)
        if bool(row.there[row.wrong].isnan().all()):
            reason = "NaN came of the new numbers and of what lay there: a slot is assigned to, and never added to"
            return Finding(Cause.VALUES_CHANGED, reason)
        reason = "written by nothing that came in; or a slot that an unfinished copy left empty"
        return Finding(Cause.VALUES_CHANGED, reason)

    def _of_another(self, row: Row, origin: Origin, lies: Place | None) -> Finding:
        """The row of `origin` lies where this one belongs."""
        mine = row.tracked.number
        of_no_stride = not self.has_kernels and origin.which != row.which and origin.head == row.head
        if origin.session != mine and (origin.which, origin.head) != (row.which, row.head) and not of_no_stride:
            reason = "rows of K and V lie further apart than H × D: they are views; their `stride(0)` says how far"
            return Finding(Cause.VALUES_CHANGED, reason, lies)
        if origin.which != row.which:
            return Finding(Cause.K_V_SWAPPED, "K and V are swapped, or one of them is written to both caches", lies)
        if origin.layer != row.layer:
            reason = "keys[layer_idx] and values[layer_idx] belong to the caches of the same layer"
            return Finding(Cause.WRONG_LAYER, reason, lies)
        if (origin.session, origin.position) not in self.tokens:
            reason = "stale: a token of an earlier step; K and V are new ones in each step"
            return Finding(Cause.VALUES_CHANGED, reason, lies)
        if origin.session != mine:
            return self._of_another_session(row, lies)
        reason = "heads are mixed up: the cache of a layer is [num_blocks, H, block_size, D], the keys are [B, H, D]"
        return Finding(Cause.VALUES_CHANGED, reason, lies)

    def _of_another_session(self, row: Row, lies: Place | None) -> Finding:
        if row.which == 0 or any(r.which == 0 for r in self.rows):
            reason = "rows of the batch are mixed up: row b of keys and values is that of sessions[b]"
            return Finding(Cause.WRONG_SESSION, reason, lies)
        reason = "rows of V are mixed up, those of K are not: are they selected alike, and each by its own stride(0)?"
        return Finding(Cause.VALUES_CHANGED if self.has_kernels else Cause.WRONG_SESSION, reason, lies)


def how_changed(right: torch.Tensor, there: torch.Tensor, old: torch.Tensor) -> str:
    """In which way the numbers that are there come from the right ones; empty if in none that is known.

    Each is [H, D]. old: what was in the slot before the step.
    """
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        if torch.equal(right.to(dtype).to(right.dtype), there):
            return f"rounded to {name}: a cast to a shorter type on the way; keep the dtype of the keys"
    if torch.equal(right + old, there):
        return "added to what was in the slot: a slot is not empty before it is written; assign, do not add"
    if torch.equal(there, -right):
        return "the sign is another"
    if torch.equal(there, right.trunc()) or torch.equal(there, right.round()):
        return "rounded to whole numbers"
    ratio = (there.double() / right.double()).flatten()
    if bool(ratio.isfinite().all()) and float(ratio.std()) < 1e-7 * abs(float(ratio[0])):
        return f"scaled by {float(ratio[0]):.6g}"
    if not torch.equal(there, right) and torch.equal(there.flatten().sort().values, right.flatten().sort().values):
        if torch.equal(there.flatten(), right.t().flatten()):
            return "transposed: the elements of a row are in the order [D, H], and the cache holds [H, D]"
        return "the elements of the row are in another order: heads are mixed up, or the elements of a head"
    return ""


# -- was a token written at all? --------------------------------------------------------------------------------------


def block_written(pool: Pool, before: Before, t: Tracked, layer: int) -> int | None:
    """The id of the block, its own before all others, into which the K or V of a session's new token went in a step.

    None if they are nowhere to be found.
    """
    ids = pool.lists(t)[layer]
    own = ids[-1] if ids else None
    found = [at * pool.sizes.num_blocks + block for _, at, block, _, _ in _places(Written(pool, before), t, layer)]
    return own if own in found else min(found, default=None)


def left_out(pool: Pool, before: Before, batch: Sequence[Tracked]) -> Cause:
    """The cause where a token is nowhere: whether others of the same step were written."""
    written = Written(pool, before)
    found = any(_places(written, t, layer) for t in batch for layer in range(pool.sizes.layers))
    return Cause.HALF_WRITTEN if found else Cause.NOTHING_WRITTEN


def _places(written: Written, t: Tracked, layer: int) -> list[Place]:
    """Where the first head of a session's last token has gone in a layer, K and V."""
    return [place for which in range(2) for place in written.places_of(t.dense[which, layer, -1, 0])]
