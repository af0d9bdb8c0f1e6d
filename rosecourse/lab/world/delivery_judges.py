"""Judges of a delivery: each item lies in its own mailbox when its hand-over is over, and every reader has its turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...engine.stepper import End, NewTokenItem
from ...pictures.sheet import counted
from .causes import Cause
from .delivery_log import DeliveryLog
from .fault import Fault, PartIsWrong
from .in_turns import MOST_WAKES

ITSELF = "`mailbox.put(item)` for each pair, in the order of the list: the items are not yours to change"
AT_ONCE = "put each item at the hand-over that it came with: only the wakes are put off"
PUT_FIRST = "a wake before the put wakes nobody for it: put first, and wake then"
TURNS = (
    f"whoever has waited longest is woken first, {MOST_WAKES} readers at each hand-over if as many wait, and one that "
    "brings nothing counts too"
)
ALL = "flush wakes everybody for whom something has come since the last wake, however many they are"
ANEW = (
    "a reader that was woken sleeps again when it has read everything: what comes then, after a flush too, needs "
    "another wake"
)
FORGET = "what is kept of a reader goes when it is woken: a server has new readers all day"

MOST_NAMES = 16  # of readers, in a verdict


def fail(cause: Cause, what: str, *details: str, reason: str = "") -> NoReturn:
    """Raise `PartIsWrong`."""
    raise PartIsWrong(Fault(what, details, reason, cause=cause))


def look_at_items(
    log: DeliveryLog, asked: Sequence[tuple[Any, Any]], given: list[tuple[Any, Any]], flush: Callable[[], object]
) -> None:
    """What was put at a hand-over is what was asked for.

    asked: pairs of mailbox and item. given: the list that the part was called with. flush: tells whether what is
    missing was put off.
    """
    if given != list(asked):
        fail(Cause.INPUTS_CHANGED, "hand_over has changed the list that it was called with", reason=ITSELF)
    expected: dict[str, list[Any]] = {}
    for box, item in asked:
        expected.setdefault(box.name, []).append(item)
    found: dict[str, list[Any]] = {}
    for name, item in log.puts:
        found.setdefault(name, []).append(item)
    for name in [*expected, *(name for name in found if name not in expected)]:
        _look_at_box(name, expected.get(name, []), found.get(name, []), expected)
    if any(len(found.get(name, [])) < len(items) for name, items in expected.items()):
        _missing(log, expected, found, flush)


def _look_at_box(name: str, expected: list[Any], found: list[Any], all_expected: dict[str, list[Any]]) -> None:
    """What lies in one mailbox beside what is missing."""
    details = (f"expected: {told(expected)}", f"found:    {told(found)}")
    for item in found:
        if not any(_same(item, one) for one in expected):
            owner = next((other for other, items in all_expected.items() if any(_same(item, o) for o in items)), "")
            if owner:
                fail(Cause.WRONG_READER, f"an item of reader {owner} lies in the mailbox of reader {name}", *details)
            what = f"the mailbox of reader {name} holds what did not come with this hand-over: {told([item])}"
            fail(Cause.ITEM_TWICE if isinstance(item, NewTokenItem | End) else Cause.VALUES_CHANGED, what, *details)
    if len(found) > len(expected) or any(sum(_same(one, item) for item in found) > 1 for one in expected):
        fail(Cause.ITEM_TWICE, f"reader {name} gets an item more than once", *details, reason=ITSELF)
    missing = [one for one in expected if not any(_same(one, item) for item in found)]
    if len(found) == len(expected) and not missing and not all(map(_same, found, expected)):
        fail(Cause.ITEM_ORDER, f"the items of reader {name} are in another order", *details, reason=ITSELF)


def _missing(
    log: DeliveryLog, expected: dict[str, list[Any]], found: dict[str, list[Any]], flush: Callable[[], object]
) -> NoReturn:
    name = next(name for name, items in expected.items() if len(found.get(name, [])) < len(items))
    details = (f"expected: {told(expected[name])}", f"found:    {told(found.get(name, []))}")
    puts = len(log.puts)
    flush()
    if len(log.puts) > puts:
        fail(Cause.ITEM_LATE, f"an item of reader {name} was put off", *details, reason=AT_ONCE)
    fail(Cause.ITEM_LOST, f"an item of reader {name} does not lie in its mailbox", *details, reason=AT_ONCE)


def look_at_turns(log: DeliveryLog) -> None:
    """Nobody waits longer than the readers in front of it take."""
    log.handed_over()
    overdue = log.overdue(MOST_WAKES)
    if not overdue:
        return
    name, waited, allowed = max(overdue, key=lambda one: one[1] - one[2])
    rivals = len(log.waiting[name].rivals)
    what = f"reader {name} sleeps, and something has lain in its mailbox for {counted(waited, 'hand-over')}"
    detail = f"{counted(rivals, 'reader')} waited in this time: each of them is woken within {allowed}"
    woken = f"woken at the last one: {_names(log.woken)}"
    fail(Cause.TURN_MISSED, what, detail, woken, reason=PUT_FIRST if name in log.too_early else TURNS)


def look_at_flush(log: DeliveryLog) -> None:
    """After a flush nobody sleeps for whom something lies there, and nothing was put."""
    if log.puts:
        name, item = log.puts[0]
        fail(Cause.ITEM_TWICE, f"flush has put {told([item])} into the mailbox of reader {name}", reason=AT_ONCE)
    if log.waiting:
        details = (f"asleep:   {_names(list(log.waiting))}", f"woken:    {_names(log.woken)}")
        what = f"after flush, reader {next(iter(log.waiting))} sleeps, and something lies in its mailbox"
        fail(Cause.LEFT_ASLEEP, what, *details, reason=ALL)


def _names(readers: Sequence[str]) -> str:
    more = f", and {len(readers) - MOST_NAMES} more" if len(readers) > MOST_NAMES else ""
    return f"{', '.join(readers[:MOST_NAMES])}{more}" if readers else "nobody"


def told(items: Sequence[Any]) -> str:
    """Items in short: tokens by their numbers."""
    return ", ".join(_word(item) for item in items) or "nothing"


def _word(item: Any) -> str:
    if isinstance(item, NewTokenItem):
        return f"token {item.token_id}"
    return "the end" if isinstance(item, End) else f"a {type(item).__name__}"


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other
