"""Judges of rows: after each plan the device has to know what the sessions say, each in the row of its place.

A row that is wrong is told by what is found in it: whose token it is, and who was in the row in the step before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ...config import SamplingParams
from ...decode.inputs import DecodeInputs
from ...pictures.sheet import counted
from ...request.draws import key_of
from .causes import Cause
from .pool import Pool, Tracked
from .telling import fail, names_of

ORDER = "row b of every tensor is session b's, in the order of this step's batch"
LEFT = "sessions have left, and the rows of the others have not been moved to where these are now"
SAME_SESSION = (
    "the session is the one that was there, and its table is another: who was freed and comes back is somebody new, "
    "and its whole row is uploaded"
)
SAME_ID = "`id` of a table is given again once the table is gone: hold the table itself, and compare with `is`"
SAME_LIST = "two tables can be equal lists: compare them with `is`, and not with `==`"
NEW_TABLE = "its table is a new one, whatever it has in common with the old one: hold the table, and compare with `is`"
FORGOTTEN = "after `forget` nothing is known to be on the device: the next plan uploads all that it needs"
FIELDS = ("positions", "temperature", "top_k", "top_p", "keys")  # of what `asked` returns


@dataclass(frozen=True)
class Seated:
    """Who was in a row, as of the last plan. at: the `id` of its table, which `table` refers to while it lives."""

    tracked: Tracked
    table: weakref.ref
    at: int
    token: int
    position: int
    blocks: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Row:
    """What a row says, or what it should say: the last token, its position, and the blocks."""

    token: int
    position: int
    blocks: list[int]

    def __str__(self) -> str:
        return f"token {self.token}, position {self.position}, blocks {self.blocks}"


class RowsJudge:
    """Judges the rows of one pool, and remembers what was right, to know it again."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._owners: dict[int, Tracked] = {}  # of each token that was made
        self._shown: dict[int, set[int]] = {}  # session number -> blocks that its rows have shown
        self._seated: list[Seated] = []
        self._forgotten = False

    def made(self, token: int, tracked: Tracked) -> None:
        """A token that belongs to a session, and to no other."""
        self._owners[token] = tracked

    def forgotten(self) -> None:
        """The part has been told to forget."""
        self._forgotten = True

    # -- the inputs of a step -----------------------------------------------------------------------------------------

    def look_at_inputs(self, inputs: Any, batch: Sequence[Tracked]) -> None:
        """What `plan` returned is what the sessions say. Raises `PartIsWrong` for the row that is wrong."""
        self._look_at_form(inputs, batch)
        right = [_right(t) for t in batch]
        tables = inputs.block_tables.tolist()
        for layer in range(self.pool.sizes.layers):
            rows = zip(inputs.token_ids.tolist(), inputs.context_lens.tolist(), tables[layer], batch, strict=True)
            found = [Row(token, position, row[: len(t.table)]) for token, position, row, t in rows]
            if found != right:
                self._tell(found, right, batch)
        longest = max(row.position for row in right)
        if inputs.max_context_len != longest:
            what = f"max_context_len is {inputs.max_context_len!s:.40}; the largest of the context lengths is {longest}"
            fail(self.pool, Cause.POSITION_STALE, what)
        self._remember(batch)

    def _remember(self, batch: Sequence[Tracked]) -> None:
        self._seated = [
            Seated(
                t, weakref.ref(t.table), id(t.table), t.session.token_ids[-1], t.length, list(t.table), t.session.params
            )
            for t in batch
        ]
        for t in batch:
            self._shown.setdefault(t.number, set()).update(t.table)
        self._forgotten = False

    def _look_at_form(self, inputs: Any, batch: Sequence[Tracked]) -> None:
        if not isinstance(inputs, DecodeInputs):
            given = "nothing (None): is there a `return`?" if inputs is None else f"a {type(inputs).__name__}"
            fail(self.pool, Cause.INTERFACE, f"plan returned {given}; it returns the step's `DecodeInputs`")
        sessions = [t.session for t in batch]
        if len(inputs.sessions) != len(sessions) or any(
            a is not b for a, b in zip(inputs.sessions, sessions, strict=False)
        ):
            fail(self.pool, Cause.WRONG_SESSION, "`sessions` of the inputs are not those of the step", reason=ORDER)
        n, most = len(batch), max(len(t.table) for t in batch)
        for name in ("token_ids", "context_lens"):
            self._look_at_tensor(name, getattr(inputs, name), (n,), (torch.int64,))
        tables = inputs.block_tables
        width = tables.shape[-1] if isinstance(tables, torch.Tensor) and tables.dim() == 3 else most
        shape = (self.pool.sizes.layers, n, max(width, most))
        self._look_at_tensor("block_tables", tables, shape, (torch.int64, torch.int32))

    def _look_at_tensor(self, name: str, given: Any, shape: tuple[int, ...], types: tuple[torch.dtype, ...]) -> None:
        device = self.pool.kv.device
        if not isinstance(given, torch.Tensor):
            fail(self.pool, Cause.INTERFACE, f"{name} of the inputs is a {type(given).__name__}, and no tensor")
        if tuple(given.shape) == shape and given.dtype in types and given.device.type == device.type:
            if shape[-1] > 1 and given.stride(-1) != 1:
                what = f"the numbers of {name} lie {given.stride(-1)} apart in memory"
                fail(self.pool, Cause.ROW_SHAPE, what, reason="kernels read them one behind the other: keep them so")
            return
        what = f"{name} of the inputs is a tensor {list(given.shape)} of {given.dtype} on {given.device}"
        wanted = f"expected: {list(shape)} of {types[0]} on {device}"
        fail(self.pool, Cause.ROW_SHAPE, what, wanted, reason="one row for each session of the step, and no others")

    # -- why a row is wrong -------------------------------------------------------------------------------------------

    def _tell(self, found: list[Row], right: list[Row], batch: Sequence[Tracked]) -> NoReturn:
        wrong = [b for b, row in enumerate(found) if row != right[b]]
        b = wrong[0]
        t = batch[b]
        cause, reason = self._why(b, found, right, batch)
        details = [f"expected: {right[b]}", f"found:    {found[b]}"]
        if self._seated:
            details.append(f"rows of the step before: {names_of([seat.tracked for seat in self._seated])}")
        details.append(f"rows of this step: {names_of(batch)}")
        if len(wrong) > 1:
            details.append(f"wrong in this step: {len(wrong)} of {len(batch)} rows")
        what = f"row {b}, session {t.name}: {self._what(found[b], right[b])}"
        fail(self.pool, cause, what, *details, reason=reason)

    def _what(self, found: Row, right: Row) -> str:
        if found.token != right.token:
            owner = self._owners.get(found.token)
            whose = f", which is session {owner.name}'s" if owner else ""
            return f"the last token is {right.token}; the row has {found.token}{whose}"
        if found.position != right.position:
            return f"the position is {right.position}; the row has {found.position}"
        n = _first_difference(found.blocks, right.blocks)
        return f"logical block {n} is block {right.blocks[n]}; the row has {found.blocks[n]}"

    def _why(self, b: int, found: list[Row], right: list[Row], batch: Sequence[Tracked]) -> tuple[Cause, str]:
        """The cause, and what it is likely to come from, of what is wrong in row b."""
        seat = next((seat for seat in self._seated if seat.table() is batch[b].table), None)
        if self._forgotten and seat is not None:
            return Cause.STATE_KEPT, FORGOTTEN
        if seat is None and (reason := self._mistaken_for(batch[b])):
            return Cause.STATE_KEPT, reason
        if reason := self._in_another_order(found, right, batch):
            return Cause.WRONG_SESSION, reason
        if reason := self._of_another(b, found[b], right[b], batch, seat):
            return Cause.WRONG_SESSION, reason
        if found[b].token != right[b].token:
            return self._why_token(found[b].token, batch[b], seat)
        if found[b].position != right[b].position:
            return Cause.POSITION_STALE, _why_position(found[b].position, right[b].position, seat)
        return self._why_block(found[b].blocks, right[b].blocks, batch[b], seat)

    def _mistaken_for(self, t: Tracked) -> str:
        """By what somebody new could be taken for one that had a row in the step before; empty for nothing."""
        alike = {
            SAME_SESSION: any(seat.tracked is t for seat in self._seated),
            SAME_ID: any(seat.at == id(t.table) for seat in self._seated),
            SAME_LIST: any(seat.blocks[: len(t.table)] == t.table[: len(seat.blocks)] for seat in self._seated),
        }
        reasons = [reason for reason, is_alike in alike.items() if is_alike]
        return NEW_TABLE if len(reasons) > 1 else next(iter(reasons), "")

    def _in_another_order(self, found: list[Row], right: list[Row], batch: Sequence[Tracked]) -> str:
        """Why rows of this step stand in places of others; empty where they do not, or where it is one row alone."""
        for name in ("token", "position", "blocks"):
            there, wanted = ([getattr(row, name) for row in rows] for rows in (found, right))
            if there == wanted:
                continue
            if _are_old_places(self._seated, batch, there, wanted, name):
                return LEFT if len(batch) < len(self._seated) else ORDER
            if sorted(there) == sorted(wanted) and len({*map(str, wanted)}) > 1:
                return ORDER
            return ""
        return ""

    def _of_another(self, b: int, found: Row, right: Row, batch: Sequence[Tracked], known: Seated | None) -> str:
        """Whose row it is instead; empty where it is nobody's."""
        owner = self._owners.get(found.token)
        if found.token != right.token and owner is not None and owner is not batch[b]:
            there = b < len(self._seated) and self._seated[b].tracked is owner
            return f"the row still has what session {owner.name} had in it" if there else f"it is {owner.name}'s row"
        others = [seat for seat in self._seated if seat.tracked is not batch[b]]
        for seat in others if found.position != right.position else []:
            if found.position in (seat.position, seat.position + 1) and self._seated.index(seat) == b:
                return f"the row still has the position of session {seat.tracked.name}, which was in it before"
        told = len(known.blocks) if known else len(right.blocks)  # behind them lies what nobody has overwritten
        differ = [x for x, y in zip(found.blocks[:told], right.blocks, strict=False) if x != y]
        own = self._shown.get(batch[b].number, set())
        for t in [*(seat.tracked for seat in others), *(t for t in self.pool.sessions if t is not batch[b])]:
            blocks = self._shown.get(t.number, set()) | {x for s in self.pool.sessions if s is t for x in s.table}
            if differ and all(x in blocks and x not in own for x in differ):
                return f"the row shows blocks of session {t.name}"
        return ""

    def _why_token(self, token: int, t: Tracked, seat: Seated | None) -> tuple[Cause, str]:
        if self._owners.get(token) is not t:
            reason = "nobody has had this token: was the token of a session that joins uploaded?"
            return (Cause.NOTHING_WRITTEN if seat is None else Cause.TOKEN_STALE), reason
        if seat is not None and token == seat.token:
            return Cause.TOKEN_STALE, "it is the token of the step before: `take` brings the next one, or the host does"
        reason = "it was the session's token; a user, or the host, has put another in its place: compare with the host"
        return Cause.TOKEN_STALE, reason

    def _why_block(self, found: list[int], right: list[int], t: Tracked, seat: Seated | None) -> tuple[Cause, str]:
        n = _first_difference(found, right)
        if seat is None:
            return Cause.ROW_STALE, "the session has just joined: all its blocks are uploaded"
        if n >= len(seat.blocks):
            return Cause.ROW_STALE, "the session has a new block since the step before, and the row was not told"
        if found[n] == seat.blocks[n] != right[n]:
            return (
                Cause.ROW_STALE,
                "a shared last block was replaced by its copy (copy-on-write); the length stays",
            )
        if found[n] in self._shown.get(t.number, ()):
            return Cause.ROW_STALE, "it is a block that the session had: was something written into the wrong column?"
        return Cause.WRONG_BLOCK, "nobody has said this block: look at the addresses that are written"

    # -- whom the rows hold, and what they ask for --------------------------------------------------------------------

    def look_at_holds(self, said: bool, batch: Sequence[Tracked]) -> None:
        """batch: sessions that are not those of the last plan, in its order. Raises `PartIsWrong` where it is said."""
        if not said:
            return
        what = f"holds says that the rows are those of {names_of(batch)}, and they are not"
        seats = [seat.tracked for seat in self._seated]
        new = [t for t in batch if all(seat.table() is not t.table for seat in self._seated)]
        reason = FORGOTTEN if self._forgotten else next(filter(None, map(self._mistaken_for, new)), "")
        cause = Cause.STATE_KEPT if reason else Cause.WRONG_SESSION
        reason = reason or "rows are held for the sessions of the last plan: the same tables, as many, in this order"
        fail(self.pool, cause, what, f"rows: {names_of(seats)}", reason=reason)

    def look_at_asked(self, asked: Any, batch: Sequence[Tracked]) -> None:
        """What sampling is told of the rows of the last step; rows that are greedy have to say no more than that."""
        sampled = [b for b, t in enumerate(batch) if t.session.params.temperature > 0]
        if asked is None:
            if sampled:
                t = batch[sampled[0]]
                what = f"asked returned None, which says that all are greedy; session {t.name} is not"
                fail(self.pool, Cause.PARAMS_WRONG, what, reason="is it found out anew when the sessions change?")
            return
        if not sampled:
            what = "asked returned what sampling wants to know, and all sessions of the step are greedy"
            reason = (
                "it returns None then: else the step sorts the whole vocabulary for nothing. "
                "Is it found out anew when the sessions change?"
            )
            fail(self.pool, Cause.PARAMS_WRONG, what, reason=reason)
        lists = {name: self._list_of(asked, name, len(batch)) for name in FIELDS}
        for b, t in enumerate(batch):
            wanted = {"positions": t.length} | _asked_by(t.session.params)
            found = {name: lists[name][b] for name in FIELDS}
            if b not in sampled:
                wanted, found = ({"temperature": values["temperature"]} for values in (wanted, found))
            if found != wanted:
                self._tell_asked(b, t, found, wanted)

    def _list_of(self, asked: Any, name: str, rows: int) -> list[Any]:
        given = getattr(asked, name, None)
        if not isinstance(given, torch.Tensor) or tuple(given.shape) != (rows,):
            what = f"asked returned a {type(asked).__name__} whose `{name}` is no tensor of {counted(rows, 'row')}"
            fail(
                self.pool,
                Cause.INTERFACE,
                what,
                reason="it returns None, or an `SamplingMetadata` of as many rows as sessions",
            )
        return given.tolist()

    def _tell_asked(self, b: int, t: Tracked, found: dict[str, Any], wanted: dict[str, Any]) -> NoReturn:
        name = next(name for name in wanted if found[name] != wanted[name])
        what = f"row {b}, session {t.name}: asked says that `{name}` is {found[name]}; it is {wanted[name]}"
        if name == "positions":
            reason = "it is the position of the token that is chosen, one behind the last: `advance` comes before"
            fail(self.pool, Cause.POSITION_STALE, what, reason=reason)
        known = [(seat.tracked, seat.params) for seat in self._seated]
        known += [(s, s.session.params) for s in self.pool.sessions]
        same = [s.name for s, params in known if s is not t and _asked_by(params)[name] == found[name]]
        reason = f"it is what session {same[0]} asks for" if same else ""
        fail(self.pool, Cause.PARAMS_WRONG, what, reason=reason)


def _right(t: Tracked) -> Row:
    return Row(t.session.token_ids[-1], t.length, list(t.table))


def _asked_by(params: SamplingParams) -> dict[str, Any]:
    """All that `asked` says, but for positions."""
    return dict(zip(FIELDS[1:], (params.temperature, params.top_k, params.top_p, key_of(params.seed)), strict=True))


def _first_difference(found: list[int], right: list[int]) -> int:
    return next(n for n, (x, y) in enumerate(zip(found, right, strict=True)) if x != y)


def _why_position(found: int, right: int, seat: Seated | None) -> str:
    if seat is None:
        return "the session has just joined: its position is uploaded, and the rows of others keep theirs"
    if found == right - 1:
        return "it is the position of the step before: `advance` counts a token for every row of the step"
    return "every step adds one to the position of each row, in `advance`, and nothing else does"


def _are_old_places(
    seated: Sequence[Seated], batch: Sequence[Tracked], there: list[Any], wanted: list[Any], name: str
) -> bool:
    """Whether the wrong values are those of the sessions that had these rows in the step before, and are still there or
    have left."""
    places = [seat.tracked for seat in seated[: len(batch)]]
    if len(places) < len(batch) or all(a is b for a, b in zip(places, batch, strict=True)):
        return False
    now = {t.number: value for t, value in zip(batch, wanted, strict=True)}
    wrong = [b for b, value in enumerate(there) if value != wanted[b]]
    moved = [b for b in wrong if places[b] is not batch[b] and places[b].number in now]
    return bool(moved) and all(_like(there[b], now[places[b].number], name) for b in moved)


def _like(found: Any, wanted: Any, name: str) -> bool:
    return found[: len(wanted)] == wanted[: len(found)] if name == "blocks" else found == wanted
