"""Deliveries that are right, and wake more than they may."""

from rosecourse.engine.stepper import End
from rosecourse.lab.course import each_token
from rosecourse.lessons import l035
from tests.support.delivery_parts import Base


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
    l035.Delivery: "still 20 wakes at one hand-over in a step of 20 sessions with a reader each",
    WakesEachOnce: "still 20 wakes at one hand-over in a step of 20 sessions with a reader each",
    OneMore: "still 9 wakes at one hand-over in a step of 20 sessions with a reader each",
    WakesWithEachItem: "12 wakes at one hand-over",
    WakesInAHurry: "wakes at one hand-over in a step of 16 sessions after the ends of others",
    SavesUp: "wakes at one hand-over in a step of",
    WakesTheLastOnesToo: "wakes of readers for whom nothing had come",
}
