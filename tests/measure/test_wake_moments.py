"""Moments of steps, hand-overs and readers: rates and shares."""

from types import SimpleNamespace

import pytest

import rosecourse as rc
from rosecourse.measure.wake_moments import NotedDelivery, full_rate, lengths_ms, shares_read, while_all_run

TIMES = [
    SimpleNamespace(tokens=[1.0, 2.0, 3.0, 4.0], read=[1.5, 2.5, 3.5, 6.0]),
    SimpleNamespace(tokens=[2.0, 3.0, 4.0], read=[2.2, 3.2, 4.5]),
]
RUN = SimpleNamespace(times=TIMES)


def test_rates_count_from_the_moment_at_which_all_requests_run():
    assert full_rate(RUN, "tokens") == pytest.approx(4 / 2)  # two tokens each behind 2.0, in two seconds
    assert full_rate(RUN) == pytest.approx(6 / 4)


def test_spans_that_begin_before_all_requests_run_are_left_out():
    spans = [(1.0, 1.5), (2.0, 2.5), (2.25, 2.75)]
    assert while_all_run(RUN, spans) == [(2.25, 2.75)]
    assert lengths_ms(spans) == pytest.approx([500, 500, 500])


def test_tokens_are_read_in_a_sleep_in_a_hand_over_or_in_other_time():
    slept, handed = [(2.1, 2.6), (5.0, 6.5)], [(3.1, 3.3)]
    # Of 2.2, 2.5, 3.2, 3.5, 4.5, 6.0: three in sleeps, one in the hand-over.
    assert shares_read(RUN, slept, handed) == pytest.approx((3 / 6, 1 / 6, 2 / 6))


def test_a_noted_delivery_does_what_the_other_one_does():
    told = []

    class Box:
        put = staticmethod(told.append)
        wake = staticmethod(lambda: told.append("wake"))

    box = Box()
    noted = NotedDelivery(rc.lesson("068").after.delivery, rc.EngineConfig())
    noted.hand_over([(box, 1)])
    noted.hand_over([(box, 2), (box, 3)])
    noted.flush()
    assert [one for one in told if one != "wake"] == [1, 2, 3]
    assert told[-1] == "wake"
    (a, b), (c, d) = noted.spans
    assert a <= b <= c <= d
