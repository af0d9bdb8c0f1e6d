"""Wrong pipelines: they are not what an engine needs, or wrong where something fails. Each with its cause."""

from collections import deque
from contextlib import suppress

import torch

from tests.support.pipeline_parts import Base


class AbandonsWithoutAWait(Base):
    def wait_in_vain(self, slot):
        pass


class AbandonsTheOldest(Base):
    def abandon(self):
        if self.in_flight:
            self.wait_in_vain(self.in_flight[0].pending)
            self.give(self.in_flight.popleft().pending)
        self.step.rows.forget()


class AbandonsNothing(Base):
    def abandon(self):
        pass


class AbandonsAndRemembers(Base):
    def abandon(self):
        while self.in_flight:
            self.wait_in_vain(self.in_flight[0].pending)
            self.give(self.in_flight.popleft().pending)


class AbandonsItsSlots(Base):
    def abandon(self):
        while self.in_flight:
            self.wait_in_vain(self.in_flight.popleft().pending)
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
    def launch(self, batch):
        slot = self.take()
        try:
            slot.put(self.step.run(batch).tokens)
        except BaseException:
            self.give(slot)
            raise
        batch.pending = slot
        self.in_flight.append(batch)


class TakesItsSlotFirst(Base):
    """And a launch that fails does not give it back."""

    def launch(self, batch):
        slot = self.take()
        slot.put(self.step.run(batch).tokens)
        batch.pending = slot
        self.in_flight.append(batch)


class PopsBeforeItWaits(Base):
    def land(self):
        step = self.in_flight.popleft()
        tokens = self.read(step)
        self.give(step.pending)
        self.landed(step, tokens)
        return step, tokens


class InFlightBeforeItRuns(Base):
    def launch(self, batch):
        batch.pending = self.ring[0]
        self.in_flight.append(batch)
        outcome = self.step.run(batch)
        self.take().put(outcome.tokens)


class SwallowsInterrupts(Base):
    def read(self, step):
        try:
            step.pending.wait()
        except BaseException:
            step.pending.event.synchronize()
        return step.pending.read()


class SwallowsFailures(Base):
    def launch(self, batch):
        with suppress(Exception):
            super().launch(batch)


class ReturnsATensor(Base):
    def read(self, step):
        step.pending.wait()
        return step.pending.host[: step.pending.size]


class ReturnsNumbersOfNumPy(Base):
    def read(self, step):
        step.pending.wait()
        return list(step.pending.host[: step.pending.size].numpy())


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
            self.sessions, self.pending = list(sessions), made

    def launch(self, batch):
        super().launch(batch)
        self.in_flight[-1] = self.Record(batch.sessions, self.in_flight[-1].pending)


class RunsTwice(Base):
    def launch(self, batch):
        self.step.run(batch)
        super().launch(batch)


class RunsWhenItLands(Base):
    def launch(self, batch):
        batch.pending = None
        self.in_flight.append(batch)

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

    def launch(self, batch):
        batch.pending = self.step.run(batch).tokens.numpy()
        self.in_flight.append(batch)


WRONG_PIPELINES = (
    AbandonsWithoutAWait,
    AbandonsTheOldest,
    AbandonsNothing,
    AbandonsAndRemembers,
    AbandonsItsSlots,
    AbandonRaises,
    NeverGivesBack,
    OneSlotTooFew,
    OneSlotTakenFirst,
    TakesItsSlotFirst,
    PopsBeforeItWaits,
    InFlightBeforeItRuns,
    SwallowsInterrupts,
    SwallowsFailures,
    ReturnsATensor,
    ReturnsNumbersOfNumPy,
    ReturnsTheTokensAlone,
    ReturnsNothing,
    TwoAhead,
    NothingInFlight,
    ItsOwnRecords,
    RunsTwice,
    RunsWhenItLands,
    NoRoomForAll,
    OfTheClass,
    AlwaysPinned,
    EventsOfAGPU,
    ByNumPy,
)
