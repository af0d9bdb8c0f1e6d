"""A block table that is not what the sessions' lists say: whose its rows are, or were, and which cause that shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from .causes import Cause
from .pool import Pool, Tracked
from .telling import block_name

Row = list[int]  # logical block -> physical block
Rows = list[list[Row]]  # layer, session of the batch -> row
Why = tuple[Cause, str]


NOBODY = -1  # the number of no session


class OldRows:
    """The rows of earlier tables, all of them right then."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], list[Row]] = {}  # (session, layer) -> its rows so far
        self._tables: list[Rows] = []

    def add(self, batch: Sequence[Tracked], right: Rows) -> None:
        self._tables.append(right)
        for layer, rows in enumerate(right):
            for t, row in zip(batch, rows, strict=True):
                self._of.setdefault((t.number, layer), []).append(row)

    def of(self, session: int, layer: int) -> list[Row]:
        return self._of.get((session, layer), [])

    def of_others(self, session: int, layer: int) -> Iterator[tuple[int, Row]]:
        """(session, row) of all other sessions."""
        for (number, at), rows in self._of.items():
            if at == layer and number != session:
                yield from ((number, row) for row in rows)

    def is_one(self, table: Rows) -> bool:
        """Whether there was such a table in an earlier step."""
        return table in self._tables


class WrongTable:
    """A table and what it must be. wrong: (layer, row of the batch) of all rows that are not right."""

    def __init__(self, pool: Pool, batch: Sequence[Tracked], given: Rows, right: Rows, old: OldRows) -> None:
        self.pool, self.batch, self.given, self.right, self._old = pool, batch, given, right, old
        self.wrong = [
            (layer, b) for layer, rows in enumerate(right) for b, row in enumerate(rows) if given[layer][b] != row
        ]

    def cause(self) -> tuple[tuple[int, int], Cause, str]:
        """The row that shows it, the cause, and what it is likely to come from."""
        whole = self._of_the_whole()
        if whole:
            return self.wrong[0], *whole
        tests = (self._of_form, self._is_empty, self._of_own, self._is_anothers_now, self._is_another_layers)
        for test in (*tests, self._was_anothers, self._in_part):
            for at in self.wrong:
                why = test(*at)
                if why:
                    return at, *why
        return self.wrong[0], Cause.WRONG_BLOCK, "some entries are nobody's: which block id do they come from?"

    def _of_the_whole(self) -> Why | None:
        flat = [row for rows in self.given for row in rows]
        by_session = [self.right[layer][b] for b in range(len(self.batch)) for layer in range(len(self.right))]
        if flat == by_session:
            reason = "the rows lie session by session: [B, L] where [L, B] is read; a view does not transpose"
            return Cause.ROW_SHAPE, reason
        if not any(map(any, flat)):
            return Cause.NOTHING_WRITTEN, "nothing was written for layer 0, or it was cleared before it was read"
        if self._old.is_one(self.given) and len(self.wrong) > 1 and len(self.batch) > 1:
            return Cause.ROW_STALE, f"stale: {self._own_old(*self.wrong[0])}, and so is the whole table"
        return None

    def _own_old(self, layer: int, b: int) -> str:
        own = self.given[layer][b] in self._old.of(self.batch[b].number, layer)
        return "this is the session's row of an earlier step" if own else "this is a row of an earlier step"

    # -- the form of a row --------------------------------------------------------------------------------------------

    def _of_form(self, layer: int, b: int) -> Why | None:
        there, row, ids = self.given[layer][b], self.right[layer][b], self.batch[b].table[layer]
        size, used = self.pool.sizes.num_blocks, len(ids)
        if there[:used] == row[:used]:
            behind = set(there[used:]) - {0}
            if len(behind) == len(set(there[used:])) == 1 < len(there[used:]):  # no list shows a block twice
                return Cause.ROW_SHAPE, "past the end of the list one number is repeated: a row is padded with 0"
            if not all(0 <= n < size for n in behind):
                if len(behind) == 1:
                    return Cause.ROW_SHAPE, "old entries past the end of the list, which must be 0: it is padded with 0"
                reason = "numbers that are no block's lie past the end of the list: read from outside an array"
                return Cause.OUTSIDE, reason
        elif _shifted(there, row[:used]):
            return Cause.ROW_SHAPE, "the right blocks, and not at the row's beginning: the zeros belong behind them"
        elif any(not 0 <= n < size for n in there[:used]):
            name = block_name(self.pool, ids[0])
            return (
                Cause.WRONG_BLOCK,
                f"a table shows a block's index in its layer: id - layer × num_blocks, here {name}",
            )
        return None

    def _is_empty(self, layer: int, b: int) -> Why | None:
        if any(map(any, self.given[layer])):
            return None
        return Cause.HALF_WRITTEN, f"nothing was written for layer {layer}"

    # -- whose row it is ----------------------------------------------------------------------------------------------

    def _of_own(self, layer: int, b: int) -> Why | None:
        there, old = self.given[layer][b], self._old.of(self.batch[b].number, layer)
        if there in old and any(there):
            return Cause.ROW_STALE, "stale: this is the session's row of an earlier step; its list has changed since"
        return None

    def _all_are(self, rows_of: Callable[[int, int], list[Row]]) -> bool:
        """Whether each wrong row is one of these, or empty; else that some are may be by chance."""
        shown = ((self.given[layer][b], rows_of(layer, b)) for layer, b in self.wrong)
        return all(there in rows or not any(there) for there, rows in shown)

    def _is_anothers_now(self, layer: int, b: int) -> Why | None:
        if not self._all_are(lambda layer, b: self.right[layer]):
            return None
        for other, row in enumerate(self.right[layer]):
            if other != b and self.given[layer][b] == row:
                reason = f"this is the row of sessions[{other}]: rows are those of the batch, in its order"
                return Cause.WRONG_SESSION, reason
        return None

    def _is_another_layers(self, layer: int, b: int) -> Why | None:
        if not self._all_are(lambda layer, b: [rows[b] for rows in self.right]):
            return None
        for other, rows in enumerate(self.right):
            if other != layer and self.given[layer][b] == rows[b]:
                return Cause.WRONG_LAYER, f"this is the session's row of layer {other}"
        return None

    @cached_property
    def _are_of_sessions(self) -> bool:
        """Whether each wrong entry is one that some session, or this one in an earlier step, has at its place; else
        that some are may be by chance."""
        return all(entry in self._at_place(layer, n) for layer, n, entry in self._wrong_entries())

    def _wrong_entries(self) -> Iterator[tuple[int, int, int]]:
        """(layer, logical block, what the table says) of all that is wrong, but for what is empty."""
        for layer, b in self.wrong:
            pairs = enumerate(zip(self.given[layer][b], self.right[layer][b], strict=True))
            yield from ((layer, n, x) for n, (x, y) in pairs if x != y and x)

    def _at_place(self, layer: int, n: int) -> set[int]:
        now = {row[n] for row in self.right[layer]}
        return now | {row[n] for _, row in self._old.of_others(NOBODY, layer)}

    def _was_anothers(self, layer: int, b: int) -> Why | None:
        if not self._are_of_sessions:
            return None
        there = self.given[layer][b]
        numbers = [number for number, row in self._old.of_others(self.batch[b].number, layer) if row == there]
        return self._of_sessions(
            layer, b, numbers, "stale: this is the row that another session had in an earlier step"
        )

    def _shows_now(self, t: Tracked, layer: int, b: int, whole: bool) -> bool:
        """Whether what is wrong in a row, or the whole row, is what the list of another session says now."""
        there, row = self.given[layer][b], self.right[layer][b]
        theirs = [self.pool.index(i) for i in t.table[layer]] + [0] * (len(row) - len(t.table[layer]))
        wrong = [n for n, (x, y) in enumerate(zip(there, row, strict=True)) if x != y]
        if whole and there != theirs:
            return False
        return t is not self.batch[b] and any(there[n] for n in wrong) and all(there[n] == theirs[n] for n in wrong)

    def _of_sessions(self, layer: int, b: int, numbers: Sequence[int], reason: str, whole: bool = False) -> Why | None:
        """Of a row, or a part of one, that sessions with these numbers have, or have had."""
        if not numbers:
            return None
        shown = {t.number for t in self.pool.sessions if self._shows_now(t, layer, b, whole)}
        if shown.issuperset(numbers) and not set(numbers) <= self.pool.freed:
            return Cause.WRONG_SESSION, reason + ": by what does a session find its row?"
        return Cause.STATE_KEPT, reason + ", and that has gone: what is kept of a session must go with it"

    @cached_property
    def _layer_of_entries(self) -> int | None:
        """The layer whose rows, of the same sessions, say what is wrong in all wrong rows; None if none does."""

        def are_of(other: int) -> bool:
            rows = [(self.given[layer][b], self.right[layer][b], self.right[other][b]) for layer, b in self.wrong]
            return all(x in (y, z) for there, row, theirs in rows for x, y, z in zip(there, row, theirs, strict=True))

        found = [other for other in range(len(self.right)) if are_of(other)]
        return next((other for other in found if all(layer != other for layer, _ in self.wrong)), None)

    # -- a row that is wrong in part ----------------------------------------------------------------------------------

    def _in_part(self, layer: int, b: int) -> Why | None:
        t, there, row = self.batch[b], self.given[layer][b], self.right[layer][b]
        differs = [n for n, (x, y) in enumerate(zip(there, row, strict=True)) if x != y]
        used = len(t.table[layer])
        own, last = self._old.of(t.number, layer), [used - 1]
        known = any(all(old[n] == there[n] for n in differs) for old in own)
        if not any(there):
            return Cause.HALF_WRITTEN, "nothing was written into this row"
        if known and differs == last:
            reason = "stale: the last block is new, or was replaced by a copy, and its entry was not written"
            return Cause.ROW_STALE, reason
        if known:
            return Cause.ROW_STALE, _STALE
        if all(n < used and not there[n] for n in differs):
            return Cause.HALF_WRITTEN, "some entries of this row were not written: they are 0"
        if there[:used] != row[:used] and sorted(there[:used]) == sorted(row[:used]):
            return Cause.WRONG_BLOCK, "the right blocks, in another order: logical block n is the n-th of the list"
        others = [n for n, old in self._old.of_others(t.number, layer) if all(old[i] == there[i] for i in differs)]
        now = zip(self.batch, self.right[layer], strict=True)
        others += [s.number for s, theirs in now if s is not t and all(theirs[i] == there[i] for i in differs)]
        if all(n >= used for n in differs):
            return self._of_sessions(layer, b, others, "old entries past the end of the list, which must be 0") or (
                Cause.ROW_STALE,
                "old entries past the end of the list, which must be 0",
            )
        others = others if self._are_of_sessions else []
        other = self._layer_of_entries
        if other is not None and not others:
            return Cause.WRONG_LAYER, f"some entries are those of the session's row of layer {other}"
        why = self._of_sessions(layer, b, others, "stale: entries that are another session's")
        if why or not all(any(old[n] == there[n] for old in own) for n in differs):
            return why
        return Cause.ROW_STALE, _STALE


def _shifted(there: Row, blocks: Row) -> bool:
    """Whether a row shows the blocks, in their order, and 0 before them."""
    first = next((n for n, block in enumerate(there) if block), 0)
    return any(blocks) and there == [0] * first + blocks + [0] * (len(there) - first - len(blocks)) and blocks[0] != 0


_STALE = "stale: some entries are earlier rows'; when a list has changed, what has changed is written anew"
