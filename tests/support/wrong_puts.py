"""Deliveries that put items wrongly, each with its cause."""

from rosecourse.engine.stepper import End, NewTokenItem
from tests.support.delivery_parts import Base


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


WRONG_PUTS = (
    PutsWithTheWake,
    OneItemOfAReader,
    NoEnds,
    PutsTwice,
    PutsAgain,
    EndsFirst,
    LastFirst,
    OneMailboxOff,
    BareTokens,
    TakesFromTheList,
    OnlyIntoEmptyOnes,
)
