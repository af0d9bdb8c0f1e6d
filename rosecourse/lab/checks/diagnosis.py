"""Why a part is wrong, decided from all scenarios together, and from experiments where these tell more.

An experiment changes one thing alone: the part is made anew for every call, or a size is another one. What is right
then and was wrong before names the cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kv.buffers import StagingBuffer
from ..world.causes import Cause
from ..world.fault import Fault, PartIsWrong
from ..world.learner import Learner, Names
from ..world.scenarios import NO_ROOM, Scenario
from .size_limits import limit_of
from .trial import Trial

PLAIN = (Cause.TAMPERING, Cause.INPUTS_CHANGED, Cause.INTERFACE, Cause.EXITS)  # these explain whatever else is wrong
WEAK = (Cause.HALF_WRITTEN, Cause.NOTHING_WRITTEN, Cause.RAISES)  # others explain these; the last is the weakest
OF_ROWS = (
    Cause.WRONG_LAYER,
    Cause.WRONG_SESSION,
    Cause.STATE_KEPT,
    Cause.ROW_STALE,
)  # of a table; the first that is met often says most
WITHOUT_ROOM = [scenario.story for scenario in NO_ROOM]
OF_PLACES = (Cause.WRONG_SESSION, Cause.WRONG_BLOCK, Cause.WRONG_SLOT, Cause.K_V_SWAPPED)
OF_COPIES = (Cause.COW_MISSED, Cause.COW_PARTIAL)
SELDOM = 3  # faults, of what comes by chance
OFTEN = 12  # once in so many faults
REMEMBERED = "everything is right if the part is made anew for each call: it remembers something of an earlier one"
OF_ANOTHER_ENGINE = (
    "everything is right if the class is made anew for each engine: it remembers something of another one"
)
BY_ADDRESS = (
    "everything is right if no table or list is ever freed, so that no later one lies at its address: what is kept by "
    "`id` outlives whose it was"
)
CONTIGUOUS = (
    "everything is right if the rows of K and V lie one behind the other; they are views, and may lie further apart: "
    "their `stride(0)` says how far"
)
CLEARED = (
    "everything is right if the table is what the buffer held when it was sent: it is written again, or cleared, after "
    "that, when the copy from it may still be under way"
)
COMES_BACK = (
    "a session that comes back on other blocks finds its row of before: the row is not renewed, or it is kept by "
    "something that outlives the table"
)


@dataclass(frozen=True)
class Met:
    """A fault, and the scenario in which it was met. None of the scenarios before it shows another story.

    forked: whether a session had a sibling by then. freed: whether one had given its blocks back.
    """

    scenario: Scenario[Any]
    fault: Fault
    forked: bool = False
    freed: bool = False


def diagnosed(trial: Trial, met: Sequence[Met]) -> list[Fault]:
    """The faults of all scenarios, the one that shows the cause best first."""
    first = _by_evidence(trial, met)
    told = first.fault if first.fault.cause in PLAIN else _by_experiment(trial, met, first)
    return [told, *(each.fault for each in met if each is not first)]


def _by_experiment(trial: Trial, met: Sequence[Met], first: Met) -> Fault:
    """The fault with the cause that experiments show, or with its own. first: the one of `met` that shows it best."""
    told = first.fault
    limit = limit_of(trial, [each.scenario.sizes for each in met], told) if trial.has_limits else ""
    if limit:
        return _as(told, Cause.SIZE_LIMIT, limit)
    if told.cause is not Cause.STATE_KEPT and _is_remembered(trial, first):
        return _as(told, Cause.STATE_KEPT, OF_ANOTHER_ENGINE if trial.keeps_rows else REMEMBERED)
    if trial.keeps_rows:
        return _of_kept_rows(trial, met, first)
    if told.cause in OF_PLACES and not _is_wrong(trial, Contiguous(trial.learner), first.scenario):
        return _as(told, Cause.VALUES_CHANGED, CONTIGUOUS)
    return told


def _as(told: Fault, cause: Cause, reason: str) -> Fault:
    return replace(told, cause=cause, or_else=None, reason=reason)


def _of_kept_rows(trial: Trial, met: Sequence[Met], first: Met) -> Fault:
    """The same for a part that keeps rows by design."""
    told = first.fault
    if told.cause is not Cause.STATE_KEPT and _is_kept_by_address(trial, first):
        return _as(told, Cause.STATE_KEPT, BY_ADDRESS)
    if not _is_wrong(trial, SentAtOnce(trial.learner), first.scenario):
        return _as(told, Cause.BUFFER_REUSED, CLEARED)
    comes_back = told.cause is Cause.ROW_STALE and len(met) > SELDOM and all(each.freed for each in met)
    if comes_back and trial.fresh and not _is_wrong(trial, Forgetful(trial.learner, trial.fresh), first.scenario):
        return replace(told, or_else=Cause.STATE_KEPT, reason=COMES_BACK)
    return told


def _by_evidence(trial: Trial, met: Sequence[Met]) -> Met:
    """The fault that explains most of the others. What is wrong where there is room shows more than what is missed
    where there is none."""
    met = [each for each in met if each.scenario.story not in WITHOUT_ROOM] or met
    others = [each for each in met if each.fault.cause not in OF_COPIES]
    if not all(each.forked for each in others):  # what is wrong without siblings explains what is wrong of their copies
        met = others
    counted = Counter(each.fault.cause for each in met)
    often = [cause for cause in OF_ROWS if trial.keeps_rows and counted[cause] >= len(met) / OFTEN]
    for cause in (*PLAIN, *often):
        if cause in counted:
            return next(each for each in met if each.fault.cause is cause)
    strong = [each for each in met if each.fault.cause not in WEAK]
    if strong:
        return strong[0]
    if met[0].fault.cause is Cause.RAISES and met[0].scenario is trial.course.world.scenarios_on(trial.kernels_on)[0]:
        return met[0]  # in the simplest scenario, which says more than what is left out in a later one
    return min(met, key=lambda each: WEAK.index(each.fault.cause) if each.fault.cause in WEAK else len(WEAK))


# -- is something remembered? -----------------------------------------------------------------------------------------


class Like(Learner):
    """The same class as another learner's, for an experiment."""

    def __init__(self, like: Learner) -> None:
        super().__init__(like.part, like.called_with, like.alive)


class Fresh(Like):
    """A learner whose class and the globals of its module are new ones for each object that is made."""

    def __init__(self, like: Learner, make: Callable[[], type]) -> None:
        super().__init__(like)
        self._make = make

    def build(self, *built_with: Any) -> Any:
        self.part = self._make()
        return super().build(*built_with)


class Forgetful(Fresh):
    """The same with a new object in each call."""

    def build(self, *built_with: Any) -> Any:
        super().build(*built_with)
        return lambda *arguments: super(Forgetful, self).build(*built_with)(*arguments)


class NothingFreed(Like):
    """The learner, and every session, table and list that it was ever called with: no other one gets its address."""

    def __init__(self, like: Learner) -> None:
        super().__init__(like)
        self._held: list[Any] = []

    def call(self, made: Any, *arguments: Any, names: Names = ()) -> Any:
        sessions = [each for given in arguments if isinstance(given, list | tuple) for each in given]
        tables = [getattr(session, "table", None) for session in sessions]
        self._held += [*arguments, *sessions, *tables, *(list(table) for table in tables if isinstance(table, list))]
        return super().call(made, *arguments, names=names)


class SentAtOnce(Like):
    """The learner, whose staging buffers give a copy of what they hold: what is written into them later does not show.

    On a CPU a table is the buffer itself.
    """

    def build(self, *built_with: Any) -> Any:
        made = super().build(*built_with)
        for buffer in getattr(made, "__dict__", {}).values():
            if isinstance(buffer, StagingBuffer):
                vars(buffer)["to_device"] = partial(_copied, buffer.to_device)
        return made


def _copied(sent: Callable[[], Tensor]) -> Tensor:
    return sent().clone()


class Contiguous(Like):
    """The learner, to whom rows of K and V are given one behind the other."""

    def call(self, made: Any, *arguments: Any, names: Names = ()) -> Any:
        lists = [isinstance(given, list) and all(isinstance(x, Tensor) for x in given) for given in arguments]
        given = (
            [x.clone(memory_format=torch.contiguous_format) for x in each] if is_list else each
            for is_list, each in zip(lists, arguments, strict=True)
        )
        return super().call(made, *given, names=names)


def _is_kept_by_address(trial: Trial, met: Met) -> bool:
    """Whether the scenario is right if no object that the part has seen is freed: none lies where another one lay."""
    return not _is_wrong(trial, NothingFreed(trial.learner), met.scenario)


def _is_remembered(trial: Trial, met: Met) -> bool:
    """Whether the scenario is right with a part that cannot remember anything of what must be forgotten.

    The rows of tables are kept by design, and have causes of their own: what must be forgotten there is another engine.
    """
    learner = Fresh if trial.keeps_rows else Forgetful
    return trial.fresh is not None and not _is_wrong(trial, learner(trial.learner, trial.fresh), met.scenario)


def _is_wrong(trial: Trial, learner: Learner, scenario: Scenario[Any]) -> bool:
    try:
        scenario.story(trial.course.world.oracle(learner, scenario.sizes))
    except PartIsWrong:
        return True
    except Exception:  # the part has left something that cannot even be read
        return True
    return False
