"""Delivery: each item is put at once; readers that sleep are woken in turns, so many a second."""

import pytest
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


def one_each(*numbers):
    return [(number, "token") for number in numbers]


# -- what is promised ---------------------------------------------------------------------------------------------


def test_items_are_put_at_once_and_in_order_whoever_is_woken():
    world = World(3)
    world.hand_over((2, "a"), (0, "b"), (2, "c"), (1, "d"))
    assert [entry[1:] for entry in world.log if entry[0] == "put"] == [(2, "a"), (0, "b"), (2, "c"), (1, "d")]
    assert [box.items for box in world.boxes] == [["b"], ["d"], ["a", "c"]]


def test_whoever_is_woken_finds_all_items_of_the_step():
    world = World(3, rate=1e9)
    world.hand_over(*one_each(0, 1, 2), after=1)
    assert [entry[0] for entry in world.log] == ["put"] * 3 + ["wake"] * 3


@pytest.mark.parametrize(("after", "wakes"), [(0.0, 1), (0.009, 1), (0.0301, 3), (0.0499, 4), (60.0, 8)])
def test_so_many_are_woken_as_the_time_since_the_last_hand_over_allows(after, wakes):
    """At least one, so that no clock that stands still leaves anybody asleep."""
    world = World(8)
    assert world.hand_over(*one_each(*range(8)), after=after) == list(range(wakes))


def test_time_counts_once():
    """A long step lets many be woken at its end, and not again at the end of the next one."""
    world = World(8)
    world.hand_over(after=10)
    assert world.hand_over(*one_each(*range(8)), after=0.021) == [0, 1]
    assert world.hand_over(after=0) == [2]


def test_whoever_sleeps_longest_is_first():
    """Who is given something more while it sleeps keeps its turn; who was woken goes to the end."""
    world = World(4)
    assert world.hand_over(*one_each(2, 0, 3)) == [2]
    assert world.hand_over(*one_each(3, 2, 1, 0)) == [0]
    assert world.hand_over(*one_each(0)) == [3]
    assert world.flush() == [2, 1, 0]


def test_a_reader_is_woken_once_for_all_that_lies_there():
    world = World(2)
    assert world.hand_over((0, "a"), (0, "b"), (1, "c")) == [0]
    assert world.hand_over((1, "d")) == [1]
    assert world.flush() == []


def test_a_hand_over_of_nothing_wakes_who_still_sleeps():
    """A step whose sessions have no token for anybody, such as one that only lands a prefill."""
    world = World(3)
    world.hand_over(*one_each(0, 1, 2))
    assert [world.hand_over() for _ in range(3)] == [[1], [2], []]


def test_flush_wakes_all_that_sleep_and_once():
    world = World(5)
    world.hand_over(*one_each(*range(5)))
    assert world.flush() == [1, 2, 3, 4]
    assert world.flush() == []


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
@settings(max_examples=300, deadline=None)
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


@given(readers=st.integers(1, 40), step=st.sampled_from([1e-5, 4e-3, 0.01, 0.019, 0.035, 0.2]))
@settings(max_examples=100, deadline=None)
def test_the_delay_of_a_token_is_bounded(readers, step):
    """With steps of one length, and a token for each reader in each step."""
    rate = 100.0
    world = World(readers, rate)
    waits = {}  # since when the oldest token of a reader lies there that it has not heard of
    for _ in range(3 * readers):
        waits = dict.fromkeys(range(readers), world.clock.now + step) | waits
        for reader in world.hand_over(*one_each(*range(readers)), after=step):
            assert world.clock.now - waits.pop(reader) <= (readers + 1) / rate + step
    assert all(world.clock.now - since <= (readers + 1) / rate + step for since in waits.values())
