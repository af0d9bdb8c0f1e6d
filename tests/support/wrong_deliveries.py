"""Deliveries that flush wrongly, or are not what the engine can call, each with its cause."""

from collections import deque

from tests.support.delivery_parts import Base

# -- flush ------------------------------------------------------------------------------------------------------------


class FlushesNothing(Base):
    def flush(self):
        pass


class FlushesAFew(Base):
    def flush(self):
        self.turns()


class FlushesTwice(Base):
    """Twice as many as are woken at a hand-over."""

    def flush(self):
        self.turns()
        self.turns()


class FlushesOnce(Base):
    flushed = False

    def flush(self):
        if not self.flushed:
            super().flush()
        self.flushed = True


class FlushForgets(Base):
    def flush(self):
        self.waiting.clear()


class ABookOfItsOwn(Base):
    """Flush does not tell the set of those who stand in the queue."""

    def __init__(self, config):
        self.queue, self.known = deque(), set()

    def enter(self, box):
        if box not in self.known:
            self.known.add(box)
            self.queue.append(box)

    def turns(self):
        for _ in range(min(self.most_wakes, len(self.queue))):
            box = self.queue.popleft()
            self.known.remove(box)
            box.wake()

    def flush(self):
        while self.queue:
            self.queue.popleft().wake()


# -- what it is and keeps ---------------------------------------------------------------------------------------------


class NoFlush:
    def __init__(self, config):
        pass

    def hand_over(self, items):
        pass


class WantsTheModel(Base):
    def __init__(self, model, kv, config):
        super().__init__(config)


class TakesOneItem(Base):
    def hand_over(self, mailbox, item):
        super().hand_over([(mailbox, item)])


class Raises(Base):
    """With fewer readers than it is made for."""

    def turns(self):
        boxes = list(self.waiting)
        for n in range(self.most_wakes):
            del self.waiting[boxes[n]]
            boxes[n].wake()


class OfTheClass(Base):
    """All engines have one queue."""

    def __init__(self, config):
        pass

    waiting = {}  # noqa: RUF012


class KeepsAll(Base):
    """Everybody who ever was a reader."""

    def __init__(self, config):
        super().__init__(config)
        self.readers = []

    def enter(self, box):
        super().enter(box)
        self.readers.append(box)


class ReadsItself(Base):
    """Whoever the mailbox is for, its reader's work is done here."""

    def wake(self, most):
        for box in list(self.waiting)[:most]:
            del self.waiting[box]
            box.take()


WRONG_ENDS = (
    FlushesNothing,
    FlushesAFew,
    FlushesTwice,
    FlushesOnce,
    FlushForgets,
    ABookOfItsOwn,
    NoFlush,
    WantsTheModel,
    TakesOneItem,
    Raises,
    OfTheClass,
    KeepsAll,
    ReadsItself,
)
