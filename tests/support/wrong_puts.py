"""Deliveries that put items wrongly, each with its cause."""

from rosecourse.engine.stepper import End, NewTokenItem
from rosecourse.lab.world.causes import Cause
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


WRONG_PUTS = {
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
}
