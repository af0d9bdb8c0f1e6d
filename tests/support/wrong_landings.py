"""Wrong pipelines: what they wait for, write and read is not what a step needs. Each with its cause."""

from collections import deque

from rosecourse.decode.inputs import Batch
from tests.support.pipeline_parts import Base


class NoWait(Base):
    def read(self, step):
        return step.pending.read()


class RecordsBeforeTheCopy(Base):
    class Slot(Base.Slot):
        def put(self, tokens):
            self.event.record()
            self.size = len(tokens)
            self.host[: self.size].copy_(tokens, non_blocking=True)


class NeverRecords(Base):
    class Slot(Base.Slot):
        def put(self, tokens):
            self.size = len(tokens)
            self.host[: self.size].copy_(tokens, non_blocking=True)


class ReadsThenWaits(Base):
    def read(self, step):
        tokens = step.pending.read()
        step.pending.wait()
        return tokens


class WaitsForTheStepBefore(Base):
    """For the event of another slot, which is that of the step that has landed."""

    def read(self, step):
        if self.ring:
            self.ring[-1].wait()
        return step.pending.read()


class OneSlot(Base):
    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        self.ring = deque([self.ring[0]] * 2)


class LastInFirstOut(Base):
    """The slot is given back when it is taken."""

    def take(self):
        return self.ring[-1]

    def give(self, slot):
        pass


class GivesBackBeforeTheWait(Base):
    def land(self):
        step = self.in_flight[0]
        self.give(step.pending)
        tokens = self.read(step)
        self.in_flight.popleft()
        self.landed(step, tokens)
        return step, tokens


class SharesItsMemory(Base):
    """Two slots, and one tensor under both."""

    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        self.ring[1].host = self.ring[0].host


class NewestFirst(Base):
    def land(self):
        step = self.in_flight[-1]
        tokens = self.read(step)
        self.in_flight.pop()
        self.give(step.pending)
        return step, tokens


class LosesTheNewest(Base):
    def land(self):
        step, tokens = super().land()
        self.in_flight.clear()
        return step, tokens


class OneAtATime(Base):
    """A launch replaces what is in flight."""

    def launch(self, batch):
        before = list(self.in_flight)
        super().launch(batch)
        for step in before:
            self.in_flight.remove(step)
            self.give(step.pending)


class StaysInFlight(Base):
    def land(self):
        step = self.in_flight[0]
        tokens = self.read(step)
        if len(self.in_flight) > 1:
            self.in_flight.popleft()
            self.give(step.pending)
        return step, tokens


class SessionsOfTheNewest(Base):
    """The row list is one of the pipeline, and not of the step."""

    def launch(self, batch):
        super().launch(batch)
        for step in self.in_flight:
            step.sessions = list(batch.sessions)


class SortsItsSessions(Base):
    def launch(self, batch):
        super().launch(Batch.of(sorted(batch.sessions, key=lambda session: len(session.token_ids)), batch.user))


class AsManyAsTheNewest(Base):
    def read(self, step):
        step.pending.wait()
        return step.pending.host[: len(self.in_flight[-1].sessions)].tolist()


class AllRows(Base):
    def read(self, step):
        step.pending.wait()
        return step.pending.host.tolist()


class Backwards(Base):
    def read(self, step):
        return super().read(step)[::-1]


class ReadsTheOtherSlot(Base):
    """That of the newest step."""

    def read(self, step):
        return super().read(self.in_flight[-1])


class TablesOfLater(Base):
    """A step asks its sessions for their tables when it lands."""

    class Lazy(Batch):
        @property
        def tables(self):
            return [list(session.table or ()) for session in self.sessions]

        @tables.setter
        def tables(self, tables):
            pass

    def launch(self, batch):
        slot = self.take()
        try:
            slot.put(self.step.run(batch).tokens)
        except BaseException:
            self.ring.appendleft(slot)
            raise
        self.in_flight.append(self.Lazy(batch.sessions, batch.user, slot))


class NobodysSteps(Base):
    def launch(self, batch):
        super().launch(Batch.of(batch.sessions))


class CopiesWhenItLands(Base):
    """The device's own tokens are kept, and sent when they are wanted."""

    def launch(self, batch):
        batch.pending = self.step.run(batch).tokens
        self.in_flight.append(batch)

    def read(self, step):
        slot = self.ring[0]
        slot.put(step.pending)
        slot.wait()
        return slot.read()

    def give(self, slot):
        pass

    def wait_in_vain(self, slot):
        slot.tolist()


class ReadsTheRows(Base):
    """The last tokens of the rows, which are the newest step's."""

    def read(self, step):
        return self.step.rows.view(len(step.sessions)).inputs.token_ids.tolist()


class ReadsTheDevice(CopiesWhenItLands):
    def read(self, step):
        return step.pending.tolist()


WRONG_LANDINGS = (
    NoWait,
    RecordsBeforeTheCopy,
    NeverRecords,
    ReadsThenWaits,
    WaitsForTheStepBefore,
    OneSlot,
    LastInFirstOut,
    GivesBackBeforeTheWait,
    SharesItsMemory,
    NewestFirst,
    LosesTheNewest,
    OneAtATime,
    StaysInFlight,
    SessionsOfTheNewest,
    SortsItsSessions,
    AsManyAsTheNewest,
    AllRows,
    Backwards,
    ReadsTheOtherSlot,
    TablesOfLater,
    NobodysSteps,
    CopiesWhenItLands,
    ReadsTheRows,
    ReadsTheDevice,
)
