"""Why a part is wrong, decided from all scenarios together, and from experiments where these tell more.

An experiment changes one thing alone: the part is made anew for every call, or a size is another one. What is right
then and was wrong before names the cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
OFTEN = 12  # once in so many faults
REMEMBERED = "everything is right if the part is made anew for each call: it remembers something of an earlier one"
OF_ANOTHER_ENGINE = (
    "everything is right if the class is made anew for each engine: it remembers something of another one"
)
BY_ADDRESS = (
    "everything is right if no table or list is ever freed, so that no later one lies at its address: what is kept by "
    "`id` outlives whose it was"
)


@dataclass(frozen=True)
class Met:
    """A fault, and the scenario in which it was met. None of the scenarios before it shows another story."""

    scenario: Scenario[Any]
    fault: Fault


def diagnosed(trial: Trial, met: Sequence[Met]) -> list[Fault]:
    """The faults of all scenarios, the one that shows the cause best first."""
    first = _by_evidence(trial, met)
    told = first.fault
    if told.cause not in PLAIN:
        sizes = [each.scenario.sizes for each in met]
        limit = limit_of(trial, sizes, told) if trial.has_limits else ""
        if limit:
            told = replace(told, cause=Cause.SIZE_LIMIT, reason=limit)
        elif told.cause is not Cause.STATE_KEPT and _is_remembered(trial, first):
            reason = OF_ANOTHER_ENGINE if trial.keeps_rows else REMEMBERED
            told = replace(told, cause=Cause.STATE_KEPT, reason=reason)
        elif trial.keeps_rows and told.cause is not Cause.STATE_KEPT and _is_kept_by_address(trial, first):
            told = replace(told, cause=Cause.STATE_KEPT, reason=BY_ADDRESS)
    return [told, *(each.fault for each in met if each is not first)]


def _by_evidence(trial: Trial, met: Sequence[Met]) -> Met:
    """The fault that explains most of the others. What is wrong where there is room shows more than what is missed
    where there is none."""
    met = [each for each in met if each.scenario.story not in WITHOUT_ROOM] or met
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


class Fresh(Learner):
    """A learner whose class and the globals of its module are new ones for each object that is made."""

    def __init__(self, like: Learner, make: Callable[[], type]) -> None:
        super().__init__(like.part, like.called_with, like.alive)
        self._make = make

    def build(self, *built_with: Any) -> Any:
        self.part = self._make()
        return super().build(*built_with)


class Forgetful(Fresh):
    """The same with a new object in each call."""

    def build(self, *built_with: Any) -> Any:
        super().build(*built_with)
        return lambda *arguments: super(Forgetful, self).build(*built_with)(*arguments)


class NothingFreed(Learner):
    """The learner, and every session, table and list that it was ever called with: no other one gets its address."""

    def __init__(self, like: Learner) -> None:
        super().__init__(like.part, like.called_with, like.alive)
        self._held: list[Any] = []

    def call(self, made: Any, *arguments: Any, names: Names = ()) -> Any:
        sessions = [each for given in arguments if isinstance(given, list | tuple) for each in given]
        tables = [getattr(session, "table", None) for session in sessions]
        self._held += [*arguments, *sessions, *tables, *(list(table) for table in tables if isinstance(table, list))]
        return super().call(made, *arguments, names=names)


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
