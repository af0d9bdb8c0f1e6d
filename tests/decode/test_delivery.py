"""Delivery: each item is put at once; readers that sleep are woken in turns, so many a second."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import EngineConfig
from rosecourse.decode.delivery import Delivery
from rosecourse.lessons import l035


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Box:
    """A mailbox that notes what is done to it: in its own log, and in one that all share."""

    def __init__(self, name, log):
        self.name, self.log, self.items = name, log, []

    def put(self, item):
        self.items.append(item)
        self.log.append(("put", self.name, item))

    def wake(self):
        self.log.append(("wake", self.name))


class World:
    """A delivery with a clock of the test's, over so many mailboxes; its first hand-over is past."""

    def __init__(self, boxes, rate=100.0):
        self.log, self.clock = [], Clock()
        self.delivery = Delivery(EngineConfig(), wakes_per_second=rate, clock=self.clock)
        self.boxes = [Box(number, self.log) for number in range(boxes)]
        self.delivery.hand_over([])

    def hand_over(self, *items, after=0.0):
        """Items are (number of a mailbox, item); returns who was woken."""
        self.clock.now += after
        start = len(self.log)
        self.delivery.hand_over([(self.boxes[number], item) for number, item in items])
        return self.woken(start)

    def flush(self):
        start = len(self.log)
        self.delivery.flush()
        return self.woken(start)

    def woken(self, start=0):
        return [entry[1] for entry in self.log[start:] if entry[0] == "wake"]


# -- what is promised ---------------------------------------------------------------------------------------------


def test_whoever_is_woken_finds_all_items_of_the_step():
    world = World(3, rate=1e9)
    world.hand_over(*[(number, "token") for number in range(3)], after=1)
    assert [entry[0] for entry in world.log] == ["put"] * 3 + ["wake"] * 3


def test_the_first_hand_over_waits_for_nothing():
    """Nobody was woken before it."""
    log = []
    boxes = [Box(number, log) for number in range(50)]
    Delivery(EngineConfig()).hand_over([(box, "token") for box in boxes])
    assert [entry for entry in log if entry[0] == "wake"] == [("wake", number) for number in range(50)]


def test_up_to_067_each_token_wakes_its_reader():
    log = []
    one, other = (Box(name, log) for name in "ab")
    delivery = l035.Delivery(EngineConfig())
    delivery.hand_over([(one, 1), (other, 2), (one, 3)])
    assert log == [("put", "a", 1), ("wake", "a"), ("put", "b", 2), ("wake", "b"), ("put", "a", 3), ("wake", "a")]
    delivery.flush()
    assert len(log) == 6


# -- any sequence -------------------------------------------------------------------------------------------------

BOXES = 6
SECONDS = st.sampled_from([0.0, 1 / 1024, 10 / 1024, 19 / 1024, 51 / 1024, 3.0])  # exact, as the rates are
HAND_OVERS = st.tuples(SECONDS, st.lists(st.integers(0, BOXES - 1), max_size=12))


@given(
    acts=st.lists(st.one_of(HAND_OVERS, st.just("flush")), max_size=30), rate=st.sampled_from([2.0**-30, 8.0, 128.0])
)
@settings(max_examples=150, deadline=None)
def test_any_hand_overs_and_flushes(acts, rate):
    """Each item once, in order and at its hand-over; never more wakes than allowed; the longest sleeper first."""
    world, asleep, given_to, number, spare = World(BOXES, rate), [], [[] for _ in range(BOXES)], 0, 0.0
    for act in acts:
        if act == "flush":
            assert world.flush() == asleep
            asleep = []
            continue
        seconds, readers = act
        items = [(reader, number + n) for n, reader in enumerate(readers)]
        number += len(items)
        before = world.clock.now
        woken = world.hand_over(*items, after=seconds)
        for reader, item in items:
            given_to[reader].append(item)
        assert [box.items for box in world.boxes] == given_to
        asleep += [reader for reader in dict.fromkeys(readers) if reader not in asleep]
        due = max(1.0, (world.clock.now - before) * rate + spare)
        most, spare = int(due), due % 1
        assert woken == asleep[:most]
        asleep = asleep[most:]
    assert world.flush() == asleep
    assert world.flush() == []
