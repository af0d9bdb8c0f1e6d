"""Pipelines that are right, and not behind, or do more than they need to."""

from contextlib import suppress

from rosecourse.lab.course import in_step
from tests.support.pipeline_parts import Base


class WaitsInLaunch(Base):
    def launch(self, batch):
        super().launch(batch)
        self.in_flight[-1].pending.wait()


class NotAhead(Base):
    steps_ahead = 0


class WaitsForTheNewest(Base):
    def read(self, step):
        self.in_flight[-1].pending.wait()
        return step.pending.read()


class ReadsACopyOnTheDevice(Base):
    """Each step has tokens of its own on the device; to read them is to wait for everything."""

    def launch(self, batch):
        batch.pending = self.step.run(batch).tokens.clone()
        self.in_flight.append(batch)

    def read(self, step):
        return step.pending.tolist()

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


WAITS_ONCE = (
    "in a step of 1 session after steps with the same sessions the host makes 1 wait for the step that was launched "
    "last,"
)
WITHOUT_THE_IDEA = {
    in_step.Pipeline: WAITS_ONCE,
    WaitsInLaunch: WAITS_ONCE,
    NotAhead: WAITS_ONCE,
    WaitsForTheNewest: "and leaves the device with nothing to do; the course's part of lesson 067 makes none",
    ReadsACopyOnTheDevice: WAITS_ONCE,
    BlockingCopy: WAITS_ONCE,
    SendsTwice: "still 2 copies of tokens to the host in a step of 1 session after steps with the same sessions",
    TellsNobody: "still 80 bytes handed to the device in a step of 4 sessions after all steps have landed",
}
