"""Deliveries as learners write them, right ones in other styles."""

from collections import deque
from itertools import islice


class QueueAndSet:
    """A queue of mailboxes, and a set that says who stands in it."""

    def __init__(self, config):
        self.queue, self.known = deque(), set()

    def hand_over(self, items):
        for box, item in items:
            box.put(item)
            if box not in self.known:
                self.known.add(box)
                self.queue.append(box)
        for _ in range(min(8, len(self.queue))):
            self.next().wake()

    def next(self):
        box = self.queue.popleft()
        self.known.discard(box)
        return box

    def flush(self):
        while self.queue:
            self.next().wake()


class Carousel:
    """Everybody who has got something sits in a ring, which goes on from where it stopped; whoever is woken leaves."""

    def __init__(self, config):
        self.ring, self.at = [], 0

    def hand_over(self, items):
        for box, item in items:
            box.put(item)
        for box in dict.fromkeys(box for box, _ in items):
            if all(box is not other for other in self.ring):
                self.ring.insert(self.at, box)
                self.at += 1
        for _ in range(min(8, len(self.ring))):
            self.at %= len(self.ring)
            self.ring.pop(self.at).wake()

    def flush(self):
        ring, self.ring, self.at = self.ring, [], 0
        for box in ring:
            box.wake()


class ByTheTime:
    """Each mailbox has the number of the hand-over since which it waits; the smallest numbers are woken."""

    most_wakes = 8

    def __init__(self, config):
        self.now, self.since = 0, {}

    def hand_over(self, items):
        self.now += 1
        for box, item in items:
            box.put(item)
            self.since.setdefault(box, self.now)
        self.wake(sorted(self.since, key=self.since.get)[: self.most_wakes])

    def flush(self):
        self.wake(list(self.since))

    def wake(self, boxes):
        for box in boxes:
            self.since.pop(box)
            box.wake()


class WakesAsItPuts:
    """Those whose turn it is are known before anything is put; each is woken after its last item."""

    def __init__(self, config):
        self.line = {}

    def hand_over(self, items):
        turn = list(islice(dict.fromkeys([*self.line, *(box for box, _ in items)]), 8))
        last = {box: number for number, (box, _) in enumerate(items)}
        for box in turn:
            self.line.pop(box, None)
            if box not in last:
                box.wake()
        for number, (box, item) in enumerate(items):
            box.put(item)
            if box not in turn:
                self.line[box] = True
            elif last[box] == number:
                box.wake()

    def flush(self):
        while self.line:
            self.line.popitem()[0].wake()


RIGHT = (QueueAndSet, Carousel, ByTheTime, WakesAsItPuts)
