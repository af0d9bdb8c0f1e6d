"""The simulated pipeline: who waits for whom, and how long a step takes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rosecourse import ConfigError
from rosecourse.measure.pipeline_simulation import PLAN, READ, RUN, WAIT, simulate

TIMES = st.integers(0, 9)


@pytest.mark.parametrize(("plan", "read", "device"), [(1, 2, 10), (3, 4, 2), (2, 3, 5), (0, 0, 4), (2, 2, 0)])
def test_a_step_takes_the_sum_before_and_the_longer_of_both_after(plan, read, device):
    for steps_ahead, expected in (
        (0, plan + read + device),
        (1, max(plan + read, device)),
        (2, max(plan + read, device)),
    ):
        lanes = simulate(9, plan=plan, read=read, device=device, steps_ahead=steps_ahead)
        assert lanes.step_time == expected


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=8), st.integers(0, 3))
def test_nobody_does_two_things_at_once_or_one_too_early(times, steps_ahead):
    plan, read, device = (list(column) for column in zip(*times, strict=True))
    lanes = simulate(len(times), plan=plan, read=read, device=device, steps_ahead=steps_ahead)
    for lane in (lanes.host, lanes.device):
        assert all(one.end <= other.start for one, other in pairwise(lane))
        assert all(span.start <= span.end for span in lane)
    spans = {(span.what, span.step): span for span in (*lanes.host, *lanes.device) if span.what != WAIT}
    steps = range(len(times))
    assert spans.keys() == {(what, step) for what in (PLAN, READ, RUN) for step in steps}
    for step in steps:
        durations = tuple(spans[what, step].duration for what in (PLAN, READ, RUN))
        assert durations == (plan[step], read[step], device[step])
        launched, before = spans[PLAN, step].end, spans[RUN, step - 1].end if step else 0
        assert spans[RUN, step].start == max(launched, before)  # as soon as it can
        assert spans[READ, step].start >= spans[RUN, step].end
        if step > steps_ahead:  # planned when all but so many have been read
            assert spans[PLAN, step].start >= spans[READ, step - steps_ahead - 1].end
    assert lanes.launched_before_read == tuple(min(steps_ahead, len(times) - 1 - step) for step in steps)
    assert 0 <= lanes.busy_share <= 1


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=8))
def test_running_ahead_never_takes_longer(times):
    plan, read, device = (list(column) for column in zip(*times, strict=True))
    ends = [simulate(len(times), plan=plan, read=read, device=device, steps_ahead=n).device[-1].end for n in range(3)]
    assert ends[1] <= ends[0]


def test_the_host_waits_where_the_device_is_not_done():
    lanes = simulate(2, plan=1, read=2, device=5, steps_ahead=1)
    assert [tuple(span) for span in lanes.host] == [
        (PLAN, 0, 0, 1),
        (PLAN, 1, 1, 2),
        (WAIT, 0, 2, 6),
        (READ, 0, 6, 8),
        (WAIT, 1, 8, 11),
        (READ, 1, 11, 13),
    ]
    assert [tuple(span) for span in lanes.device] == [(RUN, 0, 1, 6), (RUN, 1, 6, 11)]
    assert (lanes.end, lanes.idle, lanes.busy_share) == (13, (), 1)


def test_a_device_that_waits_is_idle():
    lanes = simulate(3, plan=1, read=2, device=5, steps_ahead=0)
    assert lanes.idle == ((6, 9), (14, 17))
    assert lanes.busy_share == pytest.approx(10 / 16)
    assert simulate(1, plan=1, read=1, device=3, steps_ahead=0).step_time == 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_steps": 0}, "num_steps is 0: give 1 or more"),
        ({"steps_ahead": -1}, "steps_ahead is -1: give 0 or more"),
        ({"plan": [1, 2]}, "plan has 2 times for 3 steps: give one, or one of each"),
        ({"device": -1}, "device is -1: give a time from 0 to 1e"),
        ({"read": float("nan")}, "read is nan: give a time"),
        ({"read": "fast"}, "read is 'fast': give a time"),
    ],
)
def test_what_cannot_be_simulated_is_refused(wrong, says):
    asked = {"num_steps": 3, "plan": 1, "read": 1, "device": 1, "steps_ahead": 1} | wrong
    with pytest.raises(ConfigError, match=says):
        simulate(asked.pop("num_steps"), **asked)
