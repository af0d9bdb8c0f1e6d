"""The learner's runner in an engine: its exceptions are told as those of other parts, and its outcome is looked at."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs
from ...decode.runner import DeviceStep, Outcome
from ...models.shape import Model
from ...pictures.sheet import counted
from .causes import Cause
from .fault import Fault, PartIsWrong
from .learner import Learner

METHODS = MappingProxyType({"__call__": ("inputs", "sampled"), "start": ("work",)})
NO_BEST = (
    "set `self.best` in `__init__`: `argmax` of `rosecourse.decode.sampling` is a function of tensors alone, and "
    "`argmax_on(kv.device)` is what is fastest without a graph"
)


class GuardedRunner:
    """The learner's runner in the place of an engine's."""

    def __init__(self, learner: Learner, model: Model, kv: Any, config: EngineConfig) -> None:
        self.learner = learner
        self.made = learner.build(model, kv, config)
        self.vocab_size = model.shape.vocab_size
        self.best = getattr(self.made, "best", None)
        if not callable(self.best):
            what = f"an object of {learner.part.__name__} has no `best`, by which a step finds the most probable tokens"
            raise PartIsWrong(Fault(what, reason=NO_BEST, cause=Cause.INTERFACE))

    def start(self, work: DeviceStep) -> None:
        self.learner.call_method(self.made, "start", work)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        return self.outcome_of(self.learner.call(self.made, inputs, sampled), len(inputs.token_ids))

    def outcome_of(self, returned: Any, rows: int, computed: int = 0) -> Outcome:
        """What the part has returned, which is to be the logits and tokens of so many rows.

        computed: over how many rows the graph of the step ran; 0 where this is not known.
        """
        if returned is None:
            raise _no_outcome("nothing (None): is there a `return`?")
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise _no_outcome(f"a {type(returned).__name__}")
        outcome = Outcome(*returned)
        for name, dim in (("logits", 2), ("tokens", 1)):
            given = getattr(outcome, name)
            if not isinstance(given, torch.Tensor) or given.dim() != dim:
                raise _no_outcome(f"for {name} a {type(given).__name__} that is no tensor of {dim} dimensions")
        self._look_at_rows(outcome, rows, computed)
        if outcome.logits.shape[1] != self.vocab_size or outcome.tokens.dtype != torch.int64:
            shape = list(outcome.logits.shape)
            raise _no_outcome(f"logits {shape}, and tokens of {outcome.tokens.dtype}; {self.vocab_size} and int64 are")
        return outcome

    def _look_at_rows(self, outcome: Outcome, rows: int, computed: int) -> None:
        for name, given in zip(outcome._fields, outcome, strict=True):
            found = len(given)
            if found > rows:
                what = f"{name} of {found} rows are returned for {counted(rows, 'session')}: the others are pads"
                reason = "the graph runs over a whole bucket; the step wants the rows of its sessions, the first ones"
                raise PartIsWrong(Fault(what, reason=reason, cause=Cause.PADS_RETURNED))
            if found < rows <= computed:
                what = f"{name} of {counted(found, 'row')} are returned for {rows} sessions"
                what += f"; the graph ran over {counted(computed, 'row')}"
                raise PartIsWrong(Fault(what, reason=ANOTHER_GRAPHS, cause=Cause.OUTCOME_STALE))
            if found < rows:
                what = f"{name} of {counted(found, 'row')} are returned for {counted(rows, 'session')}"
                raise PartIsWrong(Fault(what, reason=TOO_SMALL, cause=Cause.BUCKET_TOO_SMALL))


ANOTHER_GRAPHS = (
    "this is what another graph has made, or its capture: each replay writes where its own capture has written"
)
TOO_SMALL = "take the smallest bucket that has a row for each session: `bisect_left(buckets, n)` finds where it stands"


def _no_outcome(found: str) -> PartIsWrong:
    what = f"the part returned {found}; it returns the step's `Outcome(logits, tokens)`"
    return PartIsWrong(Fault(what, cause=Cause.INTERFACE))


def in_an_engine(learner: Learner) -> Callable[..., GuardedRunner]:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""

    def build(model: Model, kv: Any, config: EngineConfig) -> GuardedRunner:
        return GuardedRunner(learner, model, kv, config)

    return build
