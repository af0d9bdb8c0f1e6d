"""Pipelines as learners write them: right ones in other styles, and wrong ones, each with its cause."""

import queue
from collections import deque
from contextlib import suppress

import torch

from rosecourse.decode.events import events_for
from rosecourse.decode.in_flight import StepInFlight
from rosecourse.lab.course import in_step
from rosecourse.lab.world.causes import Cause


class NewMemory:
    """Memory and an event of its own for each step; nothing is used again."""

    steps_ahead = 1

    def __init__(self, step, kv, config):
        self.step, self.new_event = step, events_for(kv.device)
        self.in_flight = []

    def launch(self, sessions, user):
        tokens = self.step.run(sessions).tokens.to("cpu", non_blocking=True)
        there = self.new_event()
        there.record()
        self.in_flight.append(StepInFlight(sessions, user, (tokens, there)))

    def land(self):
        first = self.in_flight[0]
        tokens, there = first.made
        there.synchronize()
        self.in_flight = self.in_flight[1:]
        words = [int(token) for token in tokens]
        if not self.in_flight:
            self.step.has_read(first.sessions, words)
        return first, words

    def abandon(self):
        left, self.in_flight = self.in_flight, []
        for step in left:
            with suppress(Exception):
                step.made[1].synchronize()
        self.step.rows.forget()


class TwoRowsOfOneTensor:
    """The ring is one tensor of two rows, and the number of the step says which; read by NumPy."""

    def __init__(self, step, kv, config):
        self.steps_ahead = 1
        self.step, self.number, self.in_flight = step, 0, deque()
        self.ring = torch.zeros(2, config.max_batch_size, dtype=torch.int64)
        self.events = [events_for(kv.device)(), events_for(kv.device)()]

    def launch(self, sessions, user):
        tokens = self.step.run(sessions).tokens
        side = self.number % 2
        self.ring[side].narrow(0, 0, len(sessions)).copy_(tokens, True)
        self.events[side].record()
        self.number += 1
        self.in_flight.append(StepInFlight(sessions, user, side))

    def land(self):
        step = self.in_flight[0]
        self.events[step.made].synchronize()
        tokens = self.ring.numpy()[step.made, : len(step.sessions)].tolist()
        self.in_flight.popleft()
        if self.step.rows.holds(step.sessions) and not self.in_flight:
            self.step.rows.read(tokens)
        return step, tokens

    def abandon(self):
        for event in self.events:
            try:
                event.synchronize()
            except RuntimeError:
                break
        self.in_flight.clear()
        self.number = 0
        self.step.rows.forget()


class RingOfThree:
    """A queue of three slots; the tokens are copied on the device before they are sent."""

    steps_ahead = 1

    class Slot:
        def __init__(self, rows, device):
            self.event, self.host = events_for(device)(), torch.full((rows,), -5)

    def __init__(self, step, kv, config):
        self.step, self.in_flight, self.slots = step, deque(), queue.SimpleQueue()
        for _ in range(3):
            self.slots.put(self.Slot(config.max_batch_size, kv.device))

    def launch(self, sessions, user):
        kept = self.step.run(sessions)[1].clone()
        slot = self.slots.get_nowait()
        slot.part = slot.host[: kept.shape[0]]
        slot.part.copy_(kept, non_blocking=True)
        slot.event.record()
        self.in_flight.append(StepInFlight(sessions, user, slot))

    def land(self):
        slot = self.in_flight[0].made
        slot.event.synchronize()
        step = self.in_flight.popleft()
        tokens = slot.part.tolist()
        self.slots.put(slot)
        if len(self.in_flight) == 0:
            self.step.has_read(step.sessions, tokens)
        return step, tokens

    def abandon(self):
        for step in self.in_flight:
            with suppress(RuntimeError):
                step.made.event.synchronize()
            self.slots.put(step.made)
        self.in_flight.clear()
        self.step.rows.forget()


RIGHT = (NewMemory, TwoRowsOfOneTensor, RingOfThree)


class Base:
    """What the others change one thing of."""

    steps_ahead = 1

    class Slot:
        def __init__(self, rows, device):
            self.host, self.event = torch.zeros(rows, dtype=torch.int64), events_for(device)()

        def put(self, tokens):
            self.size = len(tokens)
            self.host[: self.size].copy_(tokens, non_blocking=True)
            self.event.record()

        def wait(self):
            self.event.synchronize()

        def read(self):
            return self.host[: self.size].tolist()

    def __init__(self, step, kv, config):
        self.step, self.in_flight = step, deque()
        self.ring = deque(self.Slot(config.max_batch_size, kv.device) for _ in range(2))

    def take(self):
        return self.ring.popleft()

    def give(self, slot):
        self.ring.append(slot)

    def launch(self, sessions, user):
        outcome = self.step.run(sessions)
        slot = self.take()
        slot.put(outcome.tokens)
        self.in_flight.append(StepInFlight(sessions, user, slot))

    def read(self, step):
        step.made.wait()
        return step.made.read()

    def land(self):
        step = self.in_flight[0]
        tokens = self.read(step)
        self.in_flight.popleft()
        self.give(step.made)
        self.landed(step, tokens)
        return step, tokens

    def landed(self, step, tokens):
        if not self.in_flight:
            self.step.has_read(step.sessions, tokens)

    def abandon(self):
        while self.in_flight:
            self.wait_in_vain(self.in_flight[0].made)
            self.give(self.in_flight.popleft().made)
        self.step.rows.forget()

    def wait_in_vain(self, slot):
        with suppress(Exception):
            slot.wait()


class NoWait(Base):
    def read(self, step):
        return step.made.read()


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
        tokens = step.made.read()
        step.made.wait()
        return tokens


class WaitsForTheStepBefore(Base):
    """For the event of another slot, which is that of the step that has landed."""

    def read(self, step):
        self.ring[-1].wait()
        return step.made.read()


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
        self.give(step.made)
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
        self.give(step.made)
        return step, tokens


class LosesTheNewest(Base):
    def land(self):
        step, tokens = super().land()
        self.in_flight.clear()
        return step, tokens


class OneAtATime(Base):
    """A launch replaces what is in flight."""

    def launch(self, sessions, user):
        before = list(self.in_flight)
        super().launch(sessions, user)
        for step in before:
            self.in_flight.remove(step)
            self.give(step.made)


class StaysInFlight(Base):
    def land(self):
        step = self.in_flight[0]
        tokens = self.read(step)
        if len(self.in_flight) > 1:
            self.in_flight.popleft()
            self.give(step.made)
        return step, tokens


class SessionsOfTheNewest(Base):
    """The row list is one of the pipeline, and not of the step."""

    def launch(self, sessions, user):
        super().launch(sessions, user)
        for step in self.in_flight:
            step.sessions = list(sessions)


class SortsItsSessions(Base):
    def launch(self, sessions, user):
        super().launch(sorted(sessions, key=lambda session: len(session.token_ids)), user)


class AsManyAsTheNewest(Base):
    def read(self, step):
        step.made.wait()
        return step.made.host[: len(self.in_flight[-1].sessions)].tolist()


class AllRows(Base):
    def read(self, step):
        step.made.wait()
        return step.made.host.tolist()


class Backwards(Base):
    def read(self, step):
        return super().read(step)[::-1]


class ReadsTheOtherSlot(Base):
    """That of the newest step."""

    def read(self, step):
        return super().read(self.in_flight[-1])


class TablesOfLater(Base):
    """A step asks its sessions for their tables when it lands."""

    class Lazy(StepInFlight):
        @property
        def tables(self):
            return [list(session.table or ()) for session in self.sessions]

        @tables.setter
        def tables(self, tables):
            pass

    def launch(self, sessions, user):
        slot = self.take()
        try:
            slot.put(self.step.run(sessions).tokens)
        except BaseException:
            self.ring.appendleft(slot)
            raise
        self.in_flight.append(self.Lazy(sessions, user, slot))


class NobodysSteps(Base):
    def launch(self, sessions, user):
        super().launch(sessions, None)


class CopiesWhenItLands(Base):
    """The device's own tokens are kept, and sent when they are wanted."""

    def launch(self, sessions, user):
        self.in_flight.append(StepInFlight(sessions, user, self.step.run(sessions).tokens))

    def read(self, step):
        slot = self.ring[0]
        slot.put(step.made)
        slot.wait()
        return slot.read()

    def give(self, slot):
        pass

    def wait_in_vain(self, slot):
        slot.tolist()


class ReadsTheDevice(CopiesWhenItLands):
    def read(self, step):
        return step.made.tolist()


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

    shared: deque = deque()

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


class ByNumPy(Base):
    """The device's tokens cannot be read like that."""

    def launch(self, sessions, user):
        self.in_flight.append(StepInFlight(sessions, user, self.step.run(sessions).tokens.numpy()))


WRONG = {
    NoWait: (Cause.READ_TOO_EARLY, "step 1, row 0, session A: land returned no token yet, not 2"),
    RecordsBeforeTheCopy: (Cause.READ_TOO_EARLY, "the event was recorded before the copy"),
    NeverRecords: (Cause.READ_TOO_EARLY, "wait for an event that was recorded behind the copy"),
    ReadsThenWaits: (Cause.READ_TOO_EARLY, "land returned no token yet"),
    WaitsForTheStepBefore: (Cause.READ_TOO_EARLY, "land returned no token yet"),
    OneSlot: (Cause.BUFFER_REUSED, "the tokens of step 2 were copied to the same memory before those of step 1 had"),
    LastInFirstOut: (Cause.BUFFER_REUSED, "the ring needs one more, or another turn"),
    GivesBackBeforeTheWait: (Cause.BUFFER_REUSED, "were copied to the same memory before those of step"),
    SharesItsMemory: (Cause.BUFFER_REUSED, "the tokens of step 2 were copied to the same memory before those of step 1"),
    NewestFirst: (Cause.WRONG_ORDER, "step 2 has landed, and step 1 is still in flight"),
    LosesTheNewest: (Cause.STEP_LOST, "after land, a step is missing in `in_flight`"),
    OneAtATime: (Cause.STEP_LOST, "after launch, a step is missing in `in_flight`"),
    StaysInFlight: (Cause.STILL_IN_FLIGHT, "after land, a step that has landed is still in `in_flight`"),
    SessionsOfTheNewest: (Cause.WRONG_SESSION, "its record has other sessions, or rows"),
    SortsItsSessions: (Cause.WRONG_SESSION, "was run for"),
    AsManyAsTheNewest: (Cause.WRONG_SESSION, "step 1 has 1 rows, and land returned 2 tokens"),
    AllRows: (Cause.WRONG_SESSION, "step 1 has 1 rows, and land returned 8 tokens"),
    Backwards: (Cause.WRONG_SESSION, "these are its tokens in another order"),
    ReadsTheOtherSlot: (Cause.OUTCOME_STALE, "these are the tokens of step 2"),
    TablesOfLater: (Cause.WRONG_SESSION, "has other tables, or other members, than its sessions had at the launch"),
    NobodysSteps: (Cause.WRONG_SESSION, "has another user than it was launched for"),
    CopiesWhenItLands: (Cause.LIVE_BUFFER, "the tokens of step 1 were not sent to the host before step 2 was launched"),
    ReadsTheDevice: (Cause.LIVE_BUFFER, "what `run` returns is overwritten by the next run"),
    AbandonsWithoutAWait: (Cause.STILL_IN_FLIGHT, "the device has not come to the end of step"),
    AbandonsTheOldest: (Cause.STILL_IN_FLIGHT, "after abandon, `in_flight` has 1 steps"),
    AbandonsNothing: (Cause.STILL_IN_FLIGHT, "after abandon, `in_flight` has 1 steps"),
    AbandonsAndRemembers: (Cause.STATE_KEPT, "after abandon, the rows still count as known"),
    AbandonsItsSlots: (Cause.SLOT_LOST, "whoever takes a slot gives it back"),
    AbandonRaises: (Cause.STILL_IN_FLIGHT, "a wait of abandon raised DeviceFailed, and it came out"),
    NeverGivesBack: (Cause.SLOT_LOST, "pop from an empty deque, although only 1 steps are in flight"),
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
    ByNumPy: (Cause.RAISES, "can't convert a tensor of the device to numpy"),
}


class WaitsInLaunch(Base):
    def launch(self, sessions, user):
        super().launch(sessions, user)
        self.in_flight[-1].made.wait()


class NotAhead(Base):
    steps_ahead = 0


class WaitsForTheNewest(Base):
    def read(self, step):
        self.in_flight[-1].made.wait()
        return step.made.read()


class ReadsACopyOnTheDevice(Base):
    """Each step has tokens of its own on the device; to read them is to wait for everything."""

    def launch(self, sessions, user):
        self.in_flight.append(StepInFlight(sessions, user, self.step.run(sessions).tokens.clone()))

    def read(self, step):
        return step.made.tolist()

    def give(self, slot):
        pass

    def wait_in_vain(self, slot):
        with suppress(Exception):
            slot.tolist()


class BlockingCopy(Base):
    class Slot(Base.Slot):
        def put(self, tokens):
            self.size = len(tokens)
            self.host[: self.size] = tokens
            self.event.record()


class SendsTwice(Base):
    class Slot(Base.Slot):
        def put(self, tokens):
            super().put(tokens)
            super().put(tokens)


class TellsNobody(Base):
    def landed(self, step, tokens):
        pass


WITHOUT_THE_IDEA = {
    in_step.Pipeline: "1 waits for the step that was launched last in a step of 1 session as in the steps before",
    WaitsInLaunch: "1 waits for the step that was launched last in a step of 1 session as in the steps before",
    NotAhead: "1 waits for the step that was launched last in a step of 1 session as in the steps before",
    WaitsForTheNewest: "the device has nothing left to do then; the course's part of lesson 067 makes 0",
    ReadsACopyOnTheDevice: "1 waits for the step that was launched last in a step of 1 session as in the steps before",
    BlockingCopy: "1 waits for the step that was launched last in a step of 1 session as in the steps before",
    SendsTwice: "still 2 copies of tokens to the host in a step of 1 session as in the steps before",
    TellsNobody: "still 80 bytes handed to the device in a step of 4 sessions after all steps have landed",
}
