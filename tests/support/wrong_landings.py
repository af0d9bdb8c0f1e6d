"""Wrong pipelines: what they wait for, write and read is not what a step needs. Each with its cause."""

from collections import deque

from rosecourse.decode.inputs import Batch
from rosecourse.lab.world.causes import Cause
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


WRONG_LANDINGS = {
    NoWait: (Cause.READ_TOO_EARLY, "step 1, row 0, session A: land returned no token yet, not 2"),
    RecordsBeforeTheCopy: (Cause.READ_TOO_EARLY, "the event was recorded before the copy"),
    NeverRecords: (Cause.READ_TOO_EARLY, "wait for an event of `events_for` that was recorded behind the copy"),
    ReadsThenWaits: (Cause.READ_TOO_EARLY, "land returned no token yet"),
    WaitsForTheStepBefore: (Cause.READ_TOO_EARLY, "land returned no token yet"),
    OneSlot: (Cause.BUFFER_REUSED, "the tokens of step 2 were copied to the same memory before those of step 1 had"),
    LastInFirstOut: (Cause.BUFFER_REUSED, "the ring needs one more, or another turn"),
    GivesBackBeforeTheWait: (Cause.BUFFER_REUSED, "were copied to the same memory before those of step"),
    SharesItsMemory: (
        Cause.BUFFER_REUSED,
        "the tokens of step 2 were copied to the same memory before those",
    ),
    NewestFirst: (Cause.WRONG_ORDER, "step 2 has landed, and step 1 is still in flight"),
    LosesTheNewest: (Cause.STEP_LOST, "after land, a step is missing in `in_flight`"),
    OneAtATime: (Cause.STEP_LOST, "after launch, a step is missing in `in_flight`"),
    StaysInFlight: (Cause.STILL_IN_FLIGHT, "after land, a step that has landed is still in `in_flight`"),
    SessionsOfTheNewest: (Cause.WRONG_SESSION, "its record has other sessions, or rows"),
    SortsItsSessions: (Cause.WRONG_SESSION, "was run for"),
    AsManyAsTheNewest: (Cause.WRONG_SESSION, "step 1 has 1 row, and land returned 2 tokens"),
    AllRows: (Cause.WRONG_SESSION, "step 1 has 1 row, and land returned 8 tokens"),
    Backwards: (Cause.WRONG_SESSION, "these are its tokens in another order"),
    ReadsTheOtherSlot: (Cause.OUTCOME_STALE, "these are the tokens of step 2"),
    TablesOfLater: (Cause.WRONG_SESSION, "has other tables, or other members, than its sessions had at the launch"),
    NobodysSteps: (Cause.WRONG_SESSION, "has another user than it was launched for"),
    CopiesWhenItLands: (Cause.LIVE_BUFFER, "the tokens of step 1 were not sent to the host before step 2 was launched"),
    ReadsTheRows: (Cause.OUTCOME_STALE, "these are the tokens of step 2"),
    ReadsTheDevice: (Cause.LIVE_BUFFER, "what `run` returns is overwritten by the next run"),
}
