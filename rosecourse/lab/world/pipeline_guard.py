"""The learner's pipeline in an engine: its exceptions are told, and after each call of it the judges look."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...config import EngineConfig
from ...decode.inputs import Batch
from ...errors import RosecourseError
from ...pictures.sheet import counted
from . import flight_judges as judges
from .causes import Cause
from .events import cpu_events_by
from .fault import Fault, PartIsWrong
from .flight_log import FlightLog
from .late_device import LateDevice, LateEvent
from .late_step import LateStep
from .learner import BUILT, Learner

METHODS = MappingProxyType({"launch": ("batch",), "land": (), "abandon": (), BUILT: ("step", "kv", "config")})
OUT_OF_SLOTS = (IndexError, KeyError, StopIteration, RosecourseError, queue.Empty)  # what a ring without a slot raises


class GuardedPipeline:
    """The learner's pipeline in the place of an engine's."""

    def __init__(
        self, learner: Learner, step: Any, kv: Any, config: EngineConfig, log: FlightLog | None = None
    ) -> None:
        self.learner = learner
        self.made = learner.build(step, kv, config)
        judges.require_flights(log or FlightLog(LateDevice()), self.made)
        self.steps_ahead = self.made.steps_ahead

    @property
    def in_flight(self) -> Any:
        return self.made.in_flight

    def launch(self, batch: Batch) -> None:
        self.learner.call_method(self.made, "launch", batch)

    def land(self) -> Any:
        return self.learner.call_method(self.made, "land")

    def abandon(self) -> None:
        self.learner.call_method(self.made, "abandon")


def in_an_engine(learner: Learner) -> Callable[..., GuardedPipeline]:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""

    def build(step: Any, kv: Any, config: EngineConfig) -> GuardedPipeline:
        return GuardedPipeline(learner, step, kv, config)

    return build


class WatchedPipeline(GuardedPipeline):
    """The same on a late device, with judges.

    most: steps that were in flight at once. has_ended: whether any has landed, was abandoned, or could not be launched.
    """

    def __init__(
        self, learner: Learner, step: Any, kv: Any, config: EngineConfig, log: FlightLog, vocab_size: int
    ) -> None:
        self.log, self.most, self.has_ended = log, 0, False
        late = LateStep(step, log, config.max_batch_size, vocab_size)
        with self._events():
            super().__init__(learner, late, kv, config, log)

    def launch(self, batch: Batch) -> None:
        sessions, user = list(batch.sessions), batch.user
        before, failure = list(self.in_flight), self.log.failure
        try:
            self._call(super().launch, "launch", batch)
        except PartIsWrong as wrong:
            if failure is None or not _comes_of(wrong, failure):
                raise self._told(wrong, launching=True) from None
            self.has_ended = True
            judges.look_untouched(self.log, self.made, before, "launch")
            raise failure from None
        if failure is not None and self.log.failure is None:
            judges.fail(self.log, Cause.EXITS, f"the step raised {_name(failure)}, and launch swallowed it")
        judges.look_at_launch(self.log, self.made, sessions, user)
        self.most = max(self.most, len(self.log.pending))

    def land(self) -> Any:
        device, before, self.has_ended = self.log.device, list(self.in_flight), True
        failure = device.failure or device.dead
        try:
            returned = self._call(super().land, "land")
        except PartIsWrong as wrong:
            if failure is None or not _comes_of(wrong, failure):
                raise self._told(wrong) from None
            judges.look_untouched(self.log, self.made, before, "land")
            raise failure from None
        if device.has_failed:
            judges.fail(self.log, Cause.EXITS, f"a wait raised {_name(failure)}, and land swallowed it")
        judges.look_at_landing(self.log, self.made, returned)
        return returned

    def abandon(self) -> None:
        device, self.has_ended = self.log.device, True
        failure = device.failure or device.dead
        try:
            self._call(super().abandon, "abandon")
        except PartIsWrong as wrong:
            if failure is not None and _comes_of(wrong, failure):
                what = f"a wait of abandon raised {_name(failure)}, and it came out: steps are left in flight"
                judges.fail(self.log, Cause.STILL_IN_FLIGHT, what, reason=judges.GONE)
            raise self._told(wrong) from None
        judges.look_at_abandoned(self.log, self.made)

    def _call(self, method: Callable[..., Any], name: str, *arguments: Any) -> Any:
        with self._events(), self.log.calling(name):
            return method(*arguments)

    @contextmanager
    def _events(self) -> Iterator[None]:
        with cpu_events_by(lambda: LateEvent(self.log.device)):
            yield

    def _told(self, wrong: PartIsWrong, launching: bool = False) -> PartIsWrong:
        """An exception of the part itself, as the fault that it is."""
        fault = wrong.fault
        if launching and isinstance(wrong.__context__, OUT_OF_SLOTS):
            fault = self._without_a_slot(fault)
        self.log.fault = self.log.fault or fault
        return PartIsWrong(self.log.fault)

    def _without_a_slot(self, fault: Fault) -> Fault:
        """A launch that found no slot, though fewer steps are in flight than may be: why the ring was empty."""
        flying = len(self.log.pending)
        if flying > self.steps_ahead or not self.most:
            return fault
        what = f"{fault.what}, with only {counted(flying, 'step')} in flight"
        if self.most == flying and not self.has_ended:
            return replace(fault, what=what, reason=judges.FEW, cause=Cause.SLOTS_TOO_FEW)
        lost = replace(fault, what=what, reason=judges.BACK, cause=Cause.SLOT_LOST)
        if self.most > flying:  # there was a slot for each of them
            return lost
        return replace(lost, reason=f"{judges.BACK}; or {judges.FEW}", or_else=Cause.SLOTS_TOO_FEW)


def _comes_of(wrong: BaseException, failure: BaseException) -> bool:
    """Whether an exception was raised by a failure, or because of it."""
    error: BaseException | None = wrong
    while error is not None:
        if error is failure:
            return True
        error = error.__cause__ or error.__context__
    return False


def _name(error: BaseException | None) -> str:
    return type(error).__name__
