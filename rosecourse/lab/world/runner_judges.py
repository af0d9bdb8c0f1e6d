"""Judges of a runner: after each step the engine is what a twin is whose runner launches the same work eagerly.

Compared are the outcome, the rows, and every number of the cache. What was done with graphs names the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ...decode.rows import LIVE, POSITION, TOKEN
from ...decode.runner import Outcome
from ...pictures.sheet import counted
from .causes import Cause
from .pool import Pool, Tracked, bits
from .runner_guard import TOO_SMALL
from .runner_log import Run, RunLog
from .telling import fail, names_of

CLOSE = {"rtol": 1e-3, "atol": 1e-3}  # a graph of another bucket adds the same numbers in another order
OF_A_STEP = (
    "`inputs` of a call are those of one step: `max_context_len` is a number, and there are as many rows as sessions. "
    "Capture with `work.rows.view(bucket).inputs`, which are those of any step"
)
REPLACED = "a replay reads where the capture has read: give it the rows' own tensors, `work.rows.view(bucket).inputs`"
WARMED = "a warm-up runs the work: let it find pads alone, in `with work.rows.all_pads():`"
TWICE = "a replay is the whole step, and so is a call of the work: do one of the two"
AMONG_PADS = "`all_pads` is for a warm-up: let the replay of a step come outside it, where sessions sit in their rows"
NOT_DONE = "a capture does nothing; the step is done by the replay after it"
ELSEWHERE = (
    "the sessions' rows and K and V are right, so the work was done: the outcome is read where it was not written. A "
    "replay writes where the capture has written; copy the outcome into a buffer of yours inside the captured work"
)
TWO_KINDS = (
    "whether a step samples is decided when its graph is captured: keep two graphs of a bucket, and ask for both"
)


@dataclass(frozen=True)
class State:
    """An engine after a step. outcome: of the step; keys_values: K and V, [2, L, num_blocks + 1, H, block_size, D]."""

    outcome: Outcome
    rows: Any
    keys_values: torch.Tensor


@dataclass(frozen=True)
class Difference:
    """What differs from the twin's. row: of the first session that it concerns."""

    what: str
    row: int
    details: tuple[str, ...] = ()


def look_at_step(pool: Pool, log: RunLog, batch: Sequence[Tracked], mine: State, right: State) -> None:
    """Raises `PartIsWrong` if anything is not what the twin has."""
    done = _rows_differ(mine, right, batch) or _cache_differs(pool, mine, right, batch)
    returned = _outcome_differs(mine.outcome, right.outcome, batch)
    if done or returned:
        _tell(pool, log, batch, done, returned)


# -- what differs -----------------------------------------------------------------------------------------------------


def _rows_differ(mine: State, right: State, batch: Sequence[Tracked]) -> Difference | None:
    n = len(batch)
    for field, name in ((POSITION, "position"), (TOKEN, "last token")):
        found, expected = (state.rows.fields[field, :n].tolist() for state in (mine, right))
        for row, t in enumerate(batch):
            if found[row] != expected[row]:
                what = f"after the step the {name} in row {row}, session {t.name}, is {found[row]}, not {expected[row]}"
                return Difference(what, row, (f"expected: {expected}", f"found:    {found}"))
    for field, name in ((POSITION, "position"), (LIVE, "mark")):
        found = mine.rows.fields[field, n:].tolist()
        if any(found):
            row = n + next(i for i, number in enumerate(found) if number)
            return Difference(f"row {row}, in which nobody sits, has the {name} {found[row - n]}, not 0", row)
    for row, t in enumerate(batch):
        found, expected = (state.rows.block_tables[row, : len(t.table)].tolist() for state in (mine, right))
        if found != expected:
            return Difference(f"row {row}, session {t.name}, shows blocks {found}, not {expected}", row)
    return None


def _cache_differs(pool: Pool, mine: State, right: State, batch: Sequence[Tracked]) -> Difference | None:
    """Old numbers are the same in both, bit by bit; those of this step are so but for the order of additions."""
    found, expected = (state.keys_values[:, :, : pool.sizes.num_blocks] for state in (mine, right))
    if torch.equal(bits(found), bits(expected)) or torch.allclose(found, expected, equal_nan=True, **CLOSE):
        return None
    wrong = ~torch.isclose(found, expected, equal_nan=True, **CLOSE)
    block, slot = wrong.any(dim=(0, 1, 3, 5)).nonzero()[0].tolist()
    owners = [t for t in pool.sessions if block in t.table]
    if not owners:
        return Difference(f"block {block}, which nobody owns, has been written at slot {slot}", 0)
    t = owners[0]
    position = t.table.index(block) * pool.sizes.block_size + slot
    row = batch.index(t) if t in batch else 0
    what = f"K and V of session {t.name} at position {position} (block {block}, slot {slot}) are not the right ones"
    return Difference(what, row)


def _outcome_differs(mine: Outcome, right: Outcome, batch: Sequence[Tracked]) -> Difference | None:
    for row, t in enumerate(batch):
        found, expected = mine.logits[row], right.logits[row]
        if not torch.allclose(found, expected, equal_nan=True, **CLOSE):
            told = f"{_some(found)}, not {_some(expected)}"
            return Difference(f"the logits returned in row {row}, session {t.name}, begin with {told}", row)
    tokens, expected_tokens = mine.tokens.tolist(), right.tokens.tolist()
    if tokens != expected_tokens:
        row = next(b for b, pair in enumerate(zip(tokens, expected_tokens, strict=True)) if pair[0] != pair[1])
        what = (
            f"the token returned in row {row}, session {batch[row].name}, is {tokens[row]}, not {expected_tokens[row]}"
        )
        return Difference(what, row, (f"expected: {expected_tokens}", f"found:    {tokens}"))
    return None


def _some(numbers: torch.Tensor) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers[:3].tolist())


# -- why --------------------------------------------------------------------------------------------------------------


def _tell(
    pool: Pool, log: RunLog, batch: Sequence[Tracked], done: Difference | None, returned: Difference | None
) -> NoReturn:
    difference = done or returned
    assert difference is not None
    cause, why, reason = _why(log, len(batch), done is not None)
    details = (*difference.details, *([f"because: {why}"] if why else []), f"rows of this step: {names_of(batch)}")
    fail(pool, cause, difference.what, *details, reason=reason)


def _why(log: RunLog, n: int, done: bool) -> tuple[Cause, str, str]:
    """The cause, what was seen of it, and what to do. n: sessions of the step. done: whether more than the outcome is
    wrong."""
    if log.times_done == 0:
        found = "a graph was captured, and none replayed" if log.captures else "no graph was replayed, no work was run"
        return Cause.NOTHING_WRITTEN, found, NOT_DONE
    if log.only_pads:
        return Cause.NOTHING_WRITTEN, "the graph was replayed while all rows were pads", AMONG_PADS
    if log.times_done > 1:
        by_hand = sum(run.live > 0 for run in log.runs)
        warmed = any(run.live > 0 and not run.after_capture for run in log.runs) and log.captures
        found = f"the step was done {log.times_done} times: {len(log.replays)} by replays, {by_hand} by the work itself"
        return (Cause.CAPTURE_ACTS, found, WARMED) if warmed else (Cause.POSITION_STALE, found, TWICE)
    run = log.replays[-1].run if log.replays else next(run for run in log.runs if run.live)
    if run is not None and (told := _why_graph(run, log, n)):
        return told
    if not done:
        return Cause.OUTCOME_STALE, "", ELSEWHERE
    return Cause.VALUES_CHANGED, "", "compare what the graph holds with what a call of the work does"


def _why_graph(run: Run, log: RunLog, n: int) -> tuple[Cause, str, str] | None:
    """What is wrong with what the graph holds, for this step; None for nothing that is seen."""
    if log.replays and run.frozen:
        return Cause.INPUTS_FROZEN, f"the graph has {run.frozen} that are not the rows' own", REPLACED
    if log.replays and run.of_a_step:
        inputs = f"{counted(run.rows, 'row')}, max_context_len {run.longest}"
        return Cause.INPUTS_FROZEN, f"the graph was captured with the inputs of a step: {inputs}", OF_A_STEP
    if run.rows < n:
        return Cause.BUCKET_TOO_SMALL, f"the graph runs over {run.rows} rows, and there are {n} sessions", TOO_SMALL
    if log.sampled and not run.sampled:
        return Cause.GREEDY_REPLAYED, "some of the sessions sample, and the graph was captured for none", TWO_KINDS
    return None
