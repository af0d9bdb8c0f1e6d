"""Judges of a pipeline: after each call of it, the steps in flight are those that were launched and have not landed,
and what has landed has its own sessions and tokens. What was sent, waited for and overwritten names the cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from ...pictures.sheet import counted
from ...request.session import InferenceSession
from .causes import Cause
from .fault import Fault, PartIsWrong
from .flight_log import FlightLog, Launched
from .late_tensors import POISON

EACH = "a launch runs the step once, and appends its batch to `in_flight`"
KEEP = "keep for each step whose row is whose: its batch says it"
EARLY = "the device has not come so far: wait for an event of `events_for` that was recorded behind the copy of them"
RECORDED = "the event was recorded before the copy: a wait for it says nothing of what the device was told afterwards"
RING = "a slot may be written again when its tokens have been read: the ring needs one more, or another turn"
LIVE = "what `run` returns is overwritten by the next run: start its way to the host before the next step is launched"
OLDEST = "the steps land in the order in which they were launched: the oldest is `in_flight[0]`"
AFTER = "wait first, and change `in_flight` and the ring when the wait has come to its end"
RUN_FIRST = "run the step first, and change `in_flight` and the ring when it has come back"
GONE = "abandon waits for each step in flight, and takes it out of `in_flight`, whatever the device says"
FORGET = "nobody knows how far the device came: `self.step.rows.forget()` lets the next step upload everything"
BACK = "whoever takes a slot gives it back: when its tokens have been read, when a launch fails, and in `abandon`"
FEW = "a new step takes a slot while those before it still have theirs: the ring needs `steps_ahead + 1` of them"


def fail(log: FlightLog, cause: Cause, what: str, *details: str, reason: str = "") -> NoReturn:
    """Raise `PartIsWrong`, and note it: an engine goes on after an exception."""
    fault = Fault(what, details, reason, cause=cause)
    log.fault = log.fault or fault
    raise PartIsWrong(log.fault)


def require_flights(log: FlightLog, part: Any) -> None:
    """What an engine asks a pipeline for, beside its methods."""
    name = type(part).__name__
    ahead = getattr(part, "steps_ahead", None)
    if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead not in (0, 1):
        what = f"`steps_ahead` of {name} is {ahead!r}: an engine lets the host be 0 or 1 steps ahead"
        fail(log, Cause.INTERFACE, what)
    in_flight = getattr(part, "in_flight", None)
    try:
        empty = len(in_flight) == 0  # type: ignore[arg-type]
    except TypeError:
        fail(log, Cause.INTERFACE, f"{name} has no `in_flight`, a deque of the steps that have not landed")
    if not empty:
        fail(log, Cause.INTERFACE, f"`in_flight` of a new {name} is not empty: nothing has been launched")


# -- after a call -----------------------------------------------------------------------------------------------------


def look_at_launch(log: FlightLog, part: Any, sessions: Sequence[InferenceSession], user: Any) -> None:
    """The step has been run once, and is the newest in flight."""
    if len(log.runs) != 1:
        found = f"launch has run the step {len(log.runs)} times" if log.runs else "launch has not run the step"
        fail(log, Cause.POSITION_STALE if log.runs else Cause.NOTHING_WRITTEN, found, reason=EACH)
    (step,) = log.runs
    step.user = user
    log.pending.append(step)
    if step.sessions != list(sessions):
        fail(log, Cause.WRONG_SESSION, f"{step.name} was run for {log.names_of(step.sessions)}", *_asked(log, sessions))
    look_at_flights(log, part, "launch")
    record = part.in_flight[-1]
    for earlier in log.pending[:-1]:
        if earlier.record is record:
            fail(log, Cause.STEP_LOST, f"{step.name} has the record of {earlier.name} in `in_flight`", reason=EACH)
    step.record = record
    _look_at_record(log, step, record)


def look_at_landing(log: FlightLog, part: Any, returned: Any) -> None:
    """The oldest step has landed, with its own sessions and tokens."""
    step = log.pending[0]
    record, token_ids = _read(log, returned)
    newer = next((one for one in log.pending[1:] if one.record is record), None)
    if newer is not None:
        fail(log, Cause.WRONG_ORDER, f"{newer.name} has landed, and {step.name} is still in flight", reason=OLDEST)
    if any(one.record is record for one in log.landed):
        fail(log, Cause.WRONG_ORDER, f"a step has landed once more, and {step.name} has not", reason=OLDEST)
    _look_at_record(log, step, record)
    _look_at_tokens(log, step, token_ids)
    del log.pending[0]
    log.landed = [*log.landed[-3:], step]
    look_at_flights(log, part, "land")


def look_at_abandoned(log: FlightLog, part: Any) -> None:
    """Nothing is in flight, and nobody believes to know what is on the device."""
    names = ", ".join(step.name for step in log.pending)
    if len(part.in_flight):
        what = f"after abandon, `in_flight` has {counted(len(part.in_flight), 'step')}"
        fail(log, Cause.STILL_IN_FLIGHT, what, reason=GONE)
    device = log.device
    if log.pending and device.dead is None and device.done < log.pending[-1].told:
        what = f"abandon has returned, and the device has not come to the end of {names}: it still writes"
        fail(log, Cause.STILL_IN_FLIGHT, what, reason=GONE)
    if log.pending and not log.forgotten:
        what = "after abandon, the rows still count as known: the next step uploads only what has changed"
        fail(log, Cause.STATE_KEPT, what, reason=FORGET)
    log.landed = [*log.landed[-3:], *log.pending]
    log.pending.clear()


def look_at_flights(log: FlightLog, part: Any, method: str) -> None:
    """`in_flight` holds a record for each step that has not landed, the oldest first."""
    found, expected = list(part.in_flight), log.pending
    names = ", ".join(step.name for step in expected) or "none"
    details = (f"expected: {names}", f"found:    {counted(len(found), 'step')}")
    if len(found) > len(expected):
        what = f"after {method}, a step that has landed is still in `in_flight`"
        fail(log, Cause.STILL_IN_FLIGHT, what, *details)
    if len(found) < len(expected):
        fail(log, Cause.STEP_LOST, f"after {method}, a step is missing in `in_flight`", *details, reason=EACH)
    known = [step for step in expected if step.record is not None]
    if any(step.record is not record for step, record in zip(known, found, strict=False)):
        fail(log, Cause.WRONG_ORDER, f"after {method}, `in_flight` is in another order", *details, reason=OLDEST)


def look_untouched(log: FlightLog, part: Any, before: Sequence[Any], method: str) -> None:
    """A call that has failed has changed nothing."""
    after = list(part.in_flight)
    if len(after) != len(before) or any(one is not other for one, other in zip(after, before, strict=True)):
        why = "the wait of `land` failed" if method == "land" else "the step could not be launched"
        what = f"{why}, and `in_flight` has {counted(len(after), 'step')}; it had {len(before)}"
        fail(log, Cause.CHANGED_TOO_EARLY, what, reason=AFTER if method == "land" else RUN_FIRST)


# -- what has landed --------------------------------------------------------------------------------------------------


def _read(log: FlightLog, returned: Any) -> tuple[Any, list[int]]:
    """What `land` has returned: the step, and a list of numbers."""
    wanted = "it returns the step and its tokens, a list of Python numbers"
    if not isinstance(returned, tuple) or len(returned) != 2:
        found = "nothing (None): is there a `return`?" if returned is None else f"a {type(returned).__name__}"
        fail(log, Cause.INTERFACE, f"land returned {found}; {wanted}")
    record, token_ids = returned
    if not isinstance(token_ids, list | tuple) or not all(type(token_id) is int for token_id in token_ids):
        kind = type(token_ids[0]).__name__ if isinstance(token_ids, list | tuple) else ""
        found = f"tokens that are a {type(token_ids).__name__}{f' of {kind}s' if kind else ''}"
        fail(log, Cause.INTERFACE, f"land returned {found}; {wanted}")
    return record, list(token_ids)


def _look_at_record(log: FlightLog, step: Launched, record: Any) -> None:
    for name in ("sessions", "tables", "members", "user"):
        if not hasattr(record, name):
            what = f"what stands in `in_flight` for {step.name} is a {type(record).__name__} without `{name}`"
            fail(log, Cause.INTERFACE, what, reason=EACH)
    if list(record.sessions) != step.sessions:
        what = f"{step.name} was launched for {log.names_of(step.sessions)}; its record has other sessions, or rows"
        found = f"found:    {log.names_of(list(record.sessions))}"
        fail(log, Cause.WRONG_SESSION, what, found, reason=KEEP)
    kept = [table is now for table, now in zip(record.tables, step.tables, strict=False)]
    if not all(kept) or len(record.tables) != len(step.tables) or set(record.members) != set(step.sessions):
        what = f"the record of {step.name} has other tables, or other members, than its sessions had at the launch"
        fail(log, Cause.WRONG_SESSION, what, reason=KEEP)
    if record.user is not step.user:
        fail(log, Cause.WRONG_SESSION, f"the record of {step.name} has another user than it was launched for")


def _look_at_tokens(log: FlightLog, step: Launched, found: list[int]) -> None:
    if found == step.tokens:
        return
    rows = range(min(len(found), len(step.tokens)))
    wrong = [row for row in rows if found[row] != step.tokens[row]]
    shown = ["no token yet" if token_id == POISON else str(token_id) for token_id in found]
    details = [f"expected: {step.tokens}", f"found:    [{', '.join(shown)}]"]
    details.append(f"rows of {step.name}: {log.names_of(step.sessions)}")
    cause, why, reason = _why(log, step, found)
    if why:
        details.append(f"because: {why}")
    what = f"{step.name} has {counted(len(step.tokens), 'row')}, and land returned {counted(len(found), 'token')}"
    if wrong and len(found) == len(step.tokens):
        row = wrong[0]
        name = log.name_of(step.sessions[row])
        what = f"{step.name}, row {row}, session {name}: land returned {shown[row]}, not {step.tokens[row]}"
    fail(log, cause, what, *details, reason=reason)


def _why(log: FlightLog, step: Launched, found: list[int]) -> tuple[Cause, str, str]:
    """The cause, what was seen of it, and what to do."""
    over = log.overwritten(step)
    if over is not None:
        why = f"the tokens of step {over.of} were copied to the same memory before those of {step.name} had been read"
        return Cause.BUFFER_REUSED, why, RING
    other = next((one for one in (*log.pending[1:], *log.landed) if one.tokens == found), None)
    if other is not None and log.was_copied(step):
        return Cause.OUTCOME_STALE, f"these are the tokens of {other.name}", "read the slot of the step that lands"
    if len(found) != len(step.tokens):
        return Cause.WRONG_SESSION, "", "read as many tokens as that step has rows, and not as many as another one"
    if not log.was_copied(step):
        newest = log.pending[-1]
        why = f"the tokens of {step.name} were not sent to the host before {newest.name} was launched"
        return (Cause.LIVE_BUFFER, why, LIVE) if newest is not step else (Cause.READ_TOO_EARLY, "", EARLY)
    if POISON in found:
        return Cause.READ_TOO_EARLY, "", RECORDED if log.recorded_too_early(step) else EARLY
    if sorted(found) == sorted(step.tokens):
        return Cause.WRONG_SESSION, "these are its tokens in another order", KEEP
    return Cause.VALUES_CHANGED, "", "the tokens are those that the device has made, row by row"


def _asked(log: FlightLog, sessions: Sequence[InferenceSession]) -> tuple[str, ...]:
    return (f"expected: {log.names_of(sessions)}, in this order",)
