"""Delivery: each item is put at once; readers that sleep are woken in turns, so many a second."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import EngineConfig
from rosecourse.decode.delivery import Delivery


class Box:
    """A mailbox that notes what is done to it in a log that all share."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def put(self, item):
        self.log.append(("put", self.name, item))

    def wake(self):
        self.log.append(("wake", self.name))


def boxes(count):
    log = []
    return [Box(number, log) for number in range(count)], log


def test_the_first_hand_over_wakes_all_readers():
    """They find all items of the step."""
    readers, log = boxes(50)
    Delivery(EngineConfig()).hand_over([(box, "token") for box in readers])
    assert log == [*(("put", n, "token") for n in range(50)), *(("wake", n) for n in range(50))]


BOXES = 6
SECONDS = st.sampled_from([0.0, 1 / 1024, 10 / 1024, 19 / 1024, 51 / 1024, 3.0])  # exact, as the rates are
HAND_OVERS = st.tuples(SECONDS, st.lists(st.integers(0, BOXES - 1), max_size=12))


@given(
    acts=st.lists(st.one_of(HAND_OVERS, st.just("flush")), max_size=30), rate=st.sampled_from([2.0**-30, 8.0, 128.0])
)
@settings(max_examples=150, deadline=None)
def test_any_hand_overs_and_flushes(acts, rate):
    """Each item once, in order and at its hand-over; never more wakes than allowed; the longest sleeper first."""
    (readers, log), now, asleep, spare = boxes(BOXES), [1000.0], [], 0.0
    delivery = Delivery(EngineConfig(), wakes_per_second=rate, clock=lambda: now[0])
    delivery.hand_over([])
    for number, act in enumerate(acts):
        log.clear()
        if act == "flush":
            delivery.flush()
            assert log == [("wake", reader) for reader in asleep]
            asleep = []
            continue
        seconds, chosen = act
        now[0] += seconds
        delivery.hand_over([(readers[reader], (number, n)) for n, reader in enumerate(chosen)])
        asleep += [reader for reader in dict.fromkeys(chosen) if reader not in asleep]
        due = max(1.0, seconds * rate + spare)
        most, spare = int(due), due % 1
        puts = [("put", reader, (number, n)) for n, reader in enumerate(chosen)]
        assert log == puts + [("wake", reader) for reader in asleep[:most]]
        asleep = asleep[most:]
    log.clear()
    for _ in range(2):
        delivery.flush()
    assert log == [("wake", reader) for reader in asleep]
