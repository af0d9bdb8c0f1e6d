"""Wrong deliveries, each with its cause; and some that are right, and wake more than they may."""

from collections import deque

from rosecourse.engine.items import End, NewTokenItem
from rosecourse.lab.course import each_token
from rosecourse.lab.world.causes import Cause
from rosecourse.lessons.delivery import l035_each_token
from tests.support.delivery_parts import Base

# -- items ------------------------------------------------------------------------------------------------------------


class PutsWithTheWake(Base):
    """The items of a reader wait here until it is its turn."""

    def put(self, box, item):
        self.waiting.setdefault(box, []).append(item)

    def wake(self, most):
        for box in list(self.waiting)[:most]:
            for item in self.waiting.pop(box):
                box.put(item)
            box.wake()


class OneItemOfAReader(Base):
    def hand_over(self, items):
        super().hand_over(list(dict(items).items()))


class NoEnds(Base):
    def put(self, box, item):
        if not isinstance(item, End):
            box.put(item)


class PutsTwice(Base):
    def put(self, box, item):
        box.put(item)
        if box not in self.waiting:
            box.put(item)


class PutsAgain(Base):
    """What was put at the last hand-over, too."""

    last = ()

    def hand_over(self, items):
        super().hand_over([*self.last, *items])
        self.last = list(items)


class EndsFirst(Base):
    def hand_over(self, items):
        super().hand_over(sorted(items, key=lambda pair: isinstance(pair[1], NewTokenItem)))


class LastFirst(Base):
    def hand_over(self, items):
        super().hand_over(items[::-1])


class OneMailboxOff(Base):
    def hand_over(self, items):
        boxes, things = [box for box, _ in items], [item for _, item in items]
        super().hand_over(list(zip(boxes[1:] + boxes[:1], things, strict=True)))


class BareTokens(Base):
    def put(self, box, item):
        box.put(item.token_id if isinstance(item, NewTokenItem) else item)


class TakesFromTheList(Base):
    def hand_over(self, items):
        while items:
            box, item = items.pop(0)
            self.put(box, item)
            self.enter(box)
        self.turns()


class OnlyIntoEmptyOnes(Base):
    """A mailbox is false when nothing lies there; and here only such as have something count."""

    def put(self, box, item):
        if not box:
            box.put(item)


# -- turns ------------------------------------------------------------------------------------------------------------


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


WRONG = {
    PutsWithTheWake: (Cause.ITEM_LATE, "put each item at the hand-over that it came with: only the wakes are put off"),
    OneItemOfAReader: (Cause.ITEM_LOST, "an item of reader A does not lie in its mailbox"),
    NoEnds: (Cause.ITEM_LOST, "the end"),
    PutsTwice: (Cause.ITEM_TWICE, "reader A gets an item more than once"),
    PutsAgain: (Cause.ITEM_TWICE, "the mailbox of reader A holds what did not come with this hand-over: token 1"),
    EndsFirst: (Cause.ITEM_ORDER, "the items of reader A are in another order"),
    LastFirst: (Cause.ITEM_ORDER, "are in another order"),
    OneMailboxOff: (Cause.WRONG_READER, "lies in the mailbox of reader"),
    BareTokens: (Cause.VALUES_CHANGED, "the mailbox of reader A holds what did not come with this hand-over: a int"),
    TakesFromTheList: (Cause.INPUTS_CHANGED, "hand_over has changed the list that it was called with"),
    OnlyIntoEmptyOnes: (Cause.ITEM_LOST, "does not lie in its mailbox"),
    NewestFirst: (Cause.TURN_MISSED, "whoever has waited longest is woken first"),
    BackToTheEnd: (Cause.TURN_MISSED, "whoever has waited longest is woken first"),
    AlwaysTheFirst: (Cause.TURN_MISSED, "woken at the last one: A, B, C, D, E, F, G, H"),
    TooFew: (Cause.TURN_MISSED, "8 readers have waited in this time: each of them is woken within 1"),
    EverySecondHandOver: (Cause.TURN_MISSED, "woken at the last one: nobody"),
    OnlyWithItems: (Cause.TURN_MISSED, "one that brings nothing counts too"),
    WakesFirst: (Cause.TURN_MISSED, "reader A sleeps, and something has lain in its mailbox for 1 hand-overs"),
    WakesAndForgets: (Cause.TURN_MISSED, "reader I sleeps"),
    WakesThenPuts: (Cause.TURN_MISSED, "a wake before the put wakes nobody for it"),
    ShortQueue: (Cause.LEFT_ASLEEP, "asleep:   A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, and "),
    ByTheRequest: (Cause.TURN_MISSED, "readers have waited in this time: each of them is woken within"),
    OnlyThoseWhoSleep: (Cause.TURN_MISSED, "reader A sleeps"),
    StopsAtOneWhoReads: (Cause.TURN_MISSED, "sleeps, and something has lain in its mailbox"),
    EighthsOfTheSteps: (Cause.TURN_MISSED, "reader A sleeps"),
    FlushesNothing: (Cause.LEFT_ASLEEP, "flush wakes everybody for whom something has come"),
    FlushesAFew: (Cause.LEFT_ASLEEP, "woken:    "),
    FlushesTwice: (Cause.LEFT_ASLEEP, "after flush, reader"),
    FlushesOnce: (Cause.LEFT_ASLEEP, "woken:    nobody"),
    FlushForgets: (Cause.LEFT_ASLEEP, "woken:    nobody"),
    ABookOfItsOwn: (Cause.TURN_MISSED, "sleeps, and something has lain in its mailbox"),
    NoFlush: (Cause.INTERFACE, "has no method `flush`"),
    WantsTheModel: (Cause.INTERFACE, "define `def __init__(self, config):`"),
    TakesOneItem: (Cause.INTERFACE, "define `def hand_over(self, items):`"),
    Raises: (Cause.RAISES, "the part raised IndexError"),
    OfTheClass: (Cause.STATE_KEPT, "everything is right if the class is made anew for each engine"),
    KeepsAll: (Cause.STATE_KEPT, "the part holds the mailbox of reader"),
    ReadsItself: (Cause.RAISES, "has no attribute 'take'"),
}

# -- right, and without the idea --------------------------------------------------------------------------------------


class WakesEachOnce(Base):
    """Each reader once at a hand-over, and all of them."""

    most_wakes = 1000


class OneMore(Base):
    most_wakes = 9


class WakesWithEachItem(Base):
    """A reader of several requests whose turn it is hears of each."""

    def hand_over(self, items):
        turn = list(dict.fromkeys([*self.waiting, *(box for box, _ in items)]))[: self.most_wakes]
        for box, item in items:
            box.put(item)
            self.enter(box)
            if box in turn:
                del self.waiting[box]
                box.wake()
        for box in turn:
            if self.waiting.pop(box, False):
                box.wake()


class WakesInAHurry(Base):
    """Whoever is done is woken at once, beside those whose turn it is."""

    def hand_over(self, items):
        super().hand_over(items)
        for box, item in items:
            if isinstance(item, End) and box in self.waiting:
                del self.waiting[box]
                box.wake()


class SavesUp(Base):
    """What was not needed at one hand-over may be woken at the next ones."""

    saved = 0

    def turns(self):
        self.saved += self.most_wakes
        before = len(self.waiting)
        self.wake(self.saved)
        self.saved -= before - len(self.waiting)


class WakesTheLastOnesToo(Base):
    """Those who were woken at the last hand-over, to be sure."""

    def __init__(self, config):
        super().__init__(config)
        self.last = []

    def wake(self, most):
        again, self.last = self.last, list(self.waiting)[:most]
        super().wake(most)
        for box in again:
            if box not in self.waiting:
                box.wake()


WITHOUT_THE_IDEA = {
    each_token.Delivery: "still 20 wakes at one hand-over in a step of 20 sessions with a reader each",
    l035_each_token.Delivery: "still 20 wakes at one hand-over in a step of 20 sessions with a reader each",
    WakesEachOnce: "still 20 wakes at one hand-over in a step of 20 sessions with a reader each",
    OneMore: "still 9 wakes at one hand-over in a step of 20 sessions with a reader each",
    WakesWithEachItem: "a reader reads all that lies in its mailbox: one wake is enough for all its requests",
    WakesInAHurry: "wakes at one hand-over in a step of 16 sessions after the ends of others",
    SavesUp: "wakes at one hand-over in a step of",
    WakesTheLastOnesToo: "wakes of readers for whom nothing had come",
}
