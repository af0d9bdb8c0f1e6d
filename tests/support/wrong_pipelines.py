"""Wrong pipelines: they are not what an engine needs, or wrong where something fails. Each with its cause."""

from collections import deque
from contextlib import suppress

import torch

from rosecourse.decode.in_flight import StepInFlight
from rosecourse.lab.world.causes import Cause
from tests.support.pipeline_parts import Base


class AbandonsWithoutAWait(Base):
    def wait_in_vain(self, slot):
        pass


class AbandonsTheOldest(Base):
    def abandon(self):
        if self.in_flight:
            self.wait_in_vain(self.in_flight[0].made)
            self.give(self.in_flight.popleft().made)
        self.step.rows.forget()


class AbandonsNothing(Base):
    def abandon(self):
        pass


class AbandonsAndRemembers(Base):
    def abandon(self):
        while self.in_flight:
            self.wait_in_vain(self.in_flight[0].made)
            self.give(self.in_flight.popleft().made)


class AbandonsItsSlots(Base):
    def abandon(self):
        while self.in_flight:
            self.wait_in_vain(self.in_flight.popleft().made)
        self.step.rows.forget()


class AbandonRaises(Base):
    def wait_in_vain(self, slot):
        slot.wait()


class NeverGivesBack(Base):
    def give(self, slot):
        pass


class OneSlotTooFew(Base):
    """It gives back every slot, as `Base` does."""

    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        self.ring = deque(self.Slot(config.max_batch_size, kv.device) for _ in range(self.steps_ahead))


class OneSlotTakenFirst(OneSlotTooFew):
    def launch(self, sessions, user):
        slot = self.take()
        try:
            slot.put(self.step.run(sessions).tokens)
        except BaseException:
            self.give(slot)
            raise
        self.in_flight.append(StepInFlight(sessions, user, slot))


class TakesItsSlotFirst(Base):
    """And a launch that fails does not give it back."""

    def launch(self, sessions, user):
        slot = self.take()
        slot.put(self.step.run(sessions).tokens)
        self.in_flight.append(StepInFlight(sessions, user, slot))


class PopsBeforeItWaits(Base):
    def land(self):
        step = self.in_flight.popleft()
        tokens = self.read(step)
        self.give(step.made)
        self.landed(step, tokens)
        return step, tokens


class InFlightBeforeItRuns(Base):
    def launch(self, sessions, user):
        self.in_flight.append(StepInFlight(sessions, user, self.ring[0]))
        outcome = self.step.run(sessions)
        self.take().put(outcome.tokens)


class SwallowsInterrupts(Base):
    def read(self, step):
        try:
            step.made.wait()
        except BaseException:
            step.made.event.synchronize()
        return step.made.read()


class SwallowsFailures(Base):
    def launch(self, sessions, user):
        with suppress(Exception):
            super().launch(sessions, user)


class ReturnsATensor(Base):
    def read(self, step):
        step.made.wait()
        return step.made.host[: step.made.size]


class ReturnsNumbersOfNumPy(Base):
    def read(self, step):
        step.made.wait()
        return list(step.made.host[: step.made.size].numpy())


class ReturnsTheTokensAlone(Base):
    def land(self):
        return super().land()[1]


class ReturnsNothing(Base):
    def land(self):
        super().land()


class TwoAhead(Base):
    steps_ahead = 2


class NothingInFlight(Base):
    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        self.flights = self.in_flight
        del self.in_flight


class ItsOwnRecords(Base):
    class Record:
        def __init__(self, sessions, made):
            self.sessions, self.made = list(sessions), made

    def launch(self, sessions, user):
        super().launch(sessions, user)
        self.in_flight[-1] = self.Record(sessions, self.in_flight[-1].made)


class RunsTwice(Base):
    def launch(self, sessions, user):
        self.step.run(sessions)
        super().launch(sessions, user)


class RunsWhenItLands(Base):
    def launch(self, sessions, user):
        self.in_flight.append(StepInFlight(sessions, user, None))

    def read(self, step):
        return self.step.run(step.sessions).tokens.tolist()


class NoRoomForAll(Base):
    """Slots of four rows."""

    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        self.ring = deque(self.Slot(4, kv.device) for _ in range(2))


class OfTheClass(Base):
    """All engines share the ring."""

    shared: deque = deque()  # noqa: RUF012

    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        if not self.shared:
            self.shared.extend(self.ring)
        self.ring = self.shared

    def take(self):
        self.ring.rotate()
        return self.ring[0]

    def give(self, slot):
        pass


class AlwaysPinned(Base):
    class Slot(Base.Slot):
        def __init__(self, rows, device):
            super().__init__(rows, device)
            self.host = torch.zeros(rows, dtype=torch.int64, pin_memory=True)


class EventsOfAGPU(Base):
    class Slot(Base.Slot):
        def __init__(self, rows, device):
            super().__init__(rows, device)
            self.event = torch.cuda.Event()


class ByNumPy(Base):
    """The device's tokens cannot be read like that."""

    def launch(self, sessions, user):
        self.in_flight.append(StepInFlight(sessions, user, self.step.run(sessions).tokens.numpy()))


WRONG_PIPELINES = {
    AbandonsWithoutAWait: (Cause.STILL_IN_FLIGHT, "the device has not come to the end of step"),
    AbandonsTheOldest: (Cause.STILL_IN_FLIGHT, "after abandon, `in_flight` has 1 step"),
    AbandonsNothing: (Cause.STILL_IN_FLIGHT, "after abandon, `in_flight` has 1 step"),
    AbandonsAndRemembers: (Cause.STATE_KEPT, "after abandon, the rows still count as known"),
    AbandonsItsSlots: (Cause.SLOT_LOST, "whoever takes a slot gives it back"),
    AbandonRaises: (Cause.STILL_IN_FLIGHT, "a wait of abandon raised DeviceFailed, and it came out"),
    NeverGivesBack: (Cause.SLOT_LOST, "pop from an empty deque, with only 1 step in flight"),
    OneSlotTooFew: (Cause.SLOTS_TOO_FEW, "pop from an empty deque, with only 1 step in flight"),
    OneSlotTakenFirst: (Cause.SLOTS_TOO_FEW, "pop from an empty deque, with only 1 step in flight"),
    TakesItsSlotFirst: (Cause.SLOT_LOST, "pop from an empty deque"),
    PopsBeforeItWaits: (Cause.CHANGED_TOO_EARLY, "the wait of `land` failed, and `in_flight` has"),
    InFlightBeforeItRuns: (Cause.CHANGED_TOO_EARLY, "the step could not be launched, and `in_flight` has"),
    SwallowsInterrupts: (Cause.EXITS, "a wait raised Interrupt, and land swallowed it"),
    SwallowsFailures: (Cause.EXITS, "the step raised DeviceFailed, and launch swallowed it"),
    ReturnsATensor: (Cause.INTERFACE, "land returned tokens that are a Tensor"),
    ReturnsNumbersOfNumPy: (Cause.INTERFACE, "land returned tokens that are a list of int64s"),
    ReturnsTheTokensAlone: (Cause.INTERFACE, "land returned a list"),
    ReturnsNothing: (Cause.INTERFACE, "land returned nothing (None): is there a `return`?"),
    TwoAhead: (Cause.INTERFACE, "`steps_ahead` of TwoAhead is 2: an engine lets the host be 0 or 1 steps ahead"),
    NothingInFlight: (Cause.INTERFACE, "NothingInFlight has no `in_flight`"),
    ItsOwnRecords: (Cause.INTERFACE, "what stands in `in_flight` for step 1 is a Record without `tables`"),
    RunsTwice: (Cause.POSITION_STALE, "launch has run the step 2 times"),
    RunsWhenItLands: (Cause.NOTHING_WRITTEN, "launch has not run the step"),
    NoRoomForAll: (Cause.RAISES, "must match the size of tensor"),
    OfTheClass: (Cause.STATE_KEPT, "everything is right if the class is made anew for each engine"),
    AlwaysPinned: (Cause.RAISES, "there is pinned memory only where there is a GPU"),
    EventsOfAGPU: (Cause.RAISES, "`events_for(kv.device)` gives what makes events, on a CPU too"),
    ByNumPy: (Cause.RAISES, "can't convert a tensor of the device to numpy"),
}
