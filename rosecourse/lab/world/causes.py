"""The causes that a fault can have: a closed list, each with a headline in plain words."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a part is refused, as a teacher would name it."""

    NOTHING_WRITTEN = "nothing-written"
    WRONG_SESSION = "wrong-session"
    WRONG_SLOT = "wrong-slot"
    WRONG_BLOCK = "wrong-block"
    WRONG_LAYER = "wrong-layer"
    K_V_SWAPPED = "k-v-swapped"
    HALF_WRITTEN = "half-written"
    VALUES_CHANGED = "values-changed"
    INPUTS_CHANGED = "inputs-changed"
    OLD_TOKENS_CHANGED = "old-tokens-changed"
    ROLLOVER_MISSED = "rollover-missed"
    BOOKS_WRONG = "books-wrong"
    COW_MISSED = "cow-missed"
    COW_PARTIAL = "cow-partial"
    COPY_MISSING = "copy-missing"
    OUTSIDE = "outside"
    ROW_STALE = "row-stale"
    ROW_SHAPE = "row-shape"
    TOKEN_STALE = "token-stale"
    POSITION_STALE = "position-stale"
    PARAMS_WRONG = "params-wrong"
    BUFFER_REUSED = "buffer-reused"
    STATE_KEPT = "state-kept"
    PADS_RETURNED = "pads-returned"
    BUCKET_TOO_SMALL = "bucket-too-small"
    INPUTS_FROZEN = "inputs-frozen"
    OUTCOME_STALE = "outcome-stale"
    CAPTURE_ACTS = "capture-acts"
    GREEDY_REPLAYED = "greedy-replayed"
    READ_TOO_EARLY = "read-too-early"
    LIVE_BUFFER = "live-buffer"
    WRONG_ORDER = "wrong-order"
    STEP_LOST = "step-lost"
    SLOT_LOST = "slot-lost"
    SLOTS_TOO_FEW = "slots-too-few"
    STILL_IN_FLIGHT = "still-in-flight"
    CHANGED_TOO_EARLY = "changed-too-early"
    RESIDUAL_LOST = "residual-lost"
    RESIDUAL_TWICE = "residual-twice"
    WRONG_NORM = "wrong-norm"
    WRONG_PRODUCT = "wrong-product"
    WRONG_GELU = "wrong-gelu"
    PADDING_SHOWN = "padding-shown"
    READ_BEFORE_WAIT = "read-before-wait"
    STORED_BEFORE_WAIT = "stored-before-wait"
    WAIT_MISSING = "wait-missing"
    STARTED_TOO_EARLY = "started-too-early"
    SIZE_LIMIT = "size-limit"
    GOAL_MISSED = "goal-missed"
    RAISES = "raises"
    HANGS = "hangs"
    EXITS = "exits"
    INTERFACE = "interface"
    NOT_OWN_WORK = "not-own-work"
    TAMPERING = "tampering"

    @property
    def headline(self) -> str:
        """What it is, in a few plain words."""
        return HEADLINES[self]


HEADLINES = {
    Cause.NOTHING_WRITTEN: "nothing is written",
    Cause.WRONG_SESSION: "a row belongs to another session",
    Cause.WRONG_SLOT: "the right block, and the wrong slot in it",
    Cause.WRONG_BLOCK: "the wrong block",
    Cause.WRONG_LAYER: "the wrong layer",
    Cause.K_V_SWAPPED: "K and V are mixed up",
    Cause.HALF_WRITTEN: "only a part of what belongs there is written",
    Cause.VALUES_CHANGED: "the values are not those that came in",
    Cause.INPUTS_CHANGED: "the part changes what it was given",
    Cause.OLD_TOKENS_CHANGED: "earlier tokens are overwritten",
    Cause.ROLLOVER_MISSED: "a new block is not begun at the right time",
    Cause.BOOKS_WRONG: "the books are not as they should be: lengths, starts, owners, free blocks, or a list's blocks",
    Cause.COW_MISSED: "a block that another session shares is written without a copy",
    Cause.COW_PARTIAL: "the copy of a shared block is not complete, or comes at the wrong time",
    Cause.COPY_MISSING: "a copy of the list is not made",
    Cause.OUTSIDE: "memory outside the part's tensors is read or written",
    Cause.ROW_STALE: "a row of the table is out of date",
    Cause.ROW_SHAPE: "the table has the wrong form",
    Cause.TOKEN_STALE: "the last token in a row is out of date",
    Cause.POSITION_STALE: "the position in a row is out of date",
    Cause.PARAMS_WRONG: "a row has other sampling parameters than its session",
    Cause.BUFFER_REUSED: "a buffer is overwritten before it has been read",
    Cause.STATE_KEPT: "the part remembers what it must forget",
    Cause.PADS_RETURNED: "rows that nobody sits in are returned",
    Cause.BUCKET_TOO_SMALL: "the graph has fewer rows than there are sessions",
    Cause.INPUTS_FROZEN: "a graph holds what was true in one step alone",
    Cause.OUTCOME_STALE: "what is returned is not what the step has made",
    Cause.CAPTURE_ACTS: "a capture does something to the sessions",
    Cause.GREEDY_REPLAYED: "a step that samples replays a graph that does not",
    Cause.READ_TOO_EARLY: "tokens are read before the device has made them",
    Cause.LIVE_BUFFER: "tokens are read where the next step has overwritten them",
    Cause.WRONG_ORDER: "the step that lands is not the oldest in flight",
    Cause.STEP_LOST: "a step that was launched is lost",
    Cause.SLOT_LOST: "a slot of the ring is never given back",
    Cause.SLOTS_TOO_FEW: "the ring has too few slots",
    Cause.STILL_IN_FLIGHT: "a step is still in flight that must not be",
    Cause.CHANGED_TOO_EARLY: "something has changed before it could no longer fail",
    Cause.RESIDUAL_LOST: "something that was added to the residual stream is missing in it",
    Cause.RESIDUAL_TWICE: "something is added to the residual stream twice",
    Cause.WRONG_NORM: "the norm is not the one that was asked for",
    Cause.WRONG_PRODUCT: "the product is not the one that was asked for",
    Cause.WRONG_GELU: "another function than GELU with the tanh approximation",
    Cause.PADDING_SHOWN: "numbers of the padding are among the logits",
    Cause.READ_BEFORE_WAIT: "a kernel reads before its wait what the kernel before it writes",
    Cause.STORED_BEFORE_WAIT: "a kernel stores before its wait",
    Cause.WAIT_MISSING: "a program does not wait for the kernel before it",
    Cause.STARTED_TOO_EARLY: "the next kernel may start before the one before has ended",
    Cause.SIZE_LIMIT: "right only up to some size",
    Cause.GOAL_MISSED: "correct, and the lesson's goal is missed",
    Cause.RAISES: "the part raises an exception",
    Cause.HANGS: "the part does not come to an end",
    Cause.EXITS: "the part ends the program, or keeps others from ending it",
    Cause.INTERFACE: "the part cannot be used as a part of the step",
    Cause.NOT_OWN_WORK: "the course's own part does the work",
    Cause.TAMPERING: "the part interferes with the check, or replaces functions that others use",
}
