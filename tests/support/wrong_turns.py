"""Deliveries whose turns are wrong, each with its cause."""

from collections import deque

from tests.support.delivery_parts import Base


class NewestFirst(Base):
    def turns(self):
        for box in list(self.waiting)[: -1 - self.most_wakes : -1]:
            del self.waiting[box]
            box.wake()


class BackToTheEnd(Base):
    """A second item costs a reader its place."""

    def enter(self, box):
        self.waiting.pop(box, None)
        self.waiting[box] = True


class AlwaysTheFirst(Base):
    """Turns begin with whoever came to the engine first."""

    def __init__(self, config):
        super().__init__(config)
        self.all = {}

    def enter(self, box):
        super().enter(box)
        self.all.setdefault(box, len(self.all))

    def turns(self):
        self.waiting = dict.fromkeys(sorted(self.waiting, key=self.all.get))
        super().turns()


class TooFew(Base):
    most_wakes = 7


class EverySecondHandOver(Base):
    odd = False

    def turns(self):
        self.odd = not self.odd
        if not self.odd:
            self.wake(2 * self.most_wakes)


class OnlyWithItems(Base):
    def hand_over(self, items):
        if items:
            super().hand_over(items)


class WakesThenPuts(Base):
    def put(self, box, item):
        if box not in self.waiting and len(self.waiting) < self.most_wakes:
            box.wake()
        box.put(item)

    def turns(self):
        self.waiting.clear()


class ShortQueue(Base):
    """A queue that has room for 64, and drops the oldest one silently."""

    def __init__(self, config):
        self.queue = deque(maxlen=64)

    def enter(self, box):
        if box not in self.queue:
            self.queue.append(box)

    def turns(self):
        for _ in range(min(self.most_wakes, len(self.queue))):
            self.queue.popleft().wake()

    def flush(self):
        while self.queue:
            self.queue.popleft().wake()


class ByTheRequest(Base):
    """Turns of requests: a reader of several takes the turns of others."""

    def hand_over(self, items):
        for box, item in items:
            box.put(item)
            self.waiting.setdefault(item.session, box)
        self.turns()

    def wake(self, most):
        for session in list(self.waiting)[:most]:
            self.waiting.pop(session).wake()


class WakesFirst(Base):
    """Before it puts."""

    def hand_over(self, items):
        self.turns()
        self.turns = lambda: None
        super().hand_over(items)
        del self.turns


class WakesAndForgets(Base):
    """Whoever is woken is taken out at the end, and with it what has come in between."""

    def hand_over(self, items):
        turn = list(self.waiting)[: self.most_wakes]
        for box in turn:
            box.wake()
        for box, item in items:
            box.put(item)
            self.enter(box)
        for box in turn:
            del self.waiting[box]
        self.wake(self.most_wakes - len(turn))


class OnlyThoseWhoSleep(Base):
    """A mailbox in which nothing lies is false: its reader gets nothing."""

    def wake(self, most):
        for box in list(self.waiting)[:most]:
            del self.waiting[box]
            if not box:
                box.wake()


class StopsAtOneWhoReads(Base):
    """A mailbox that is empty ends the turns."""

    def wake(self, most):
        for box in list(self.waiting)[:most]:
            if not box:
                break
            del self.waiting[box]
            box.wake()


class EighthsOfTheSteps(Base):
    """A reader has every eighth item; those who have fewer hear of nothing."""

    def __init__(self, config):
        super().__init__(config)
        self.count = {}

    def enter(self, box):
        self.count[box] = self.count.get(box, 0) + 1
        if self.count[box] % 3 == 0:
            super().enter(box)


WRONG_TURNS = (
    NewestFirst,
    BackToTheEnd,
    AlwaysTheFirst,
    TooFew,
    EverySecondHandOver,
    OnlyWithItems,
    WakesFirst,
    WakesAndForgets,
    WakesThenPuts,
    ShortQueue,
    ByTheRequest,
    OnlyThoseWhoSleep,
    StopsAtOneWhoReads,
    EighthsOfTheSteps,
)
