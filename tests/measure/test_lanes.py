"""The simulated pipeline and the simulated kernels: who waits for whom, and what is won."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rosecourse.measure.lanes import (
    AFTER_WAIT,
    AT_END,
    AT_START,
    PLAN,
    READ,
    RUN,
    WAIT,
    Kernel,
    busy_share,
    in_gaps,
    most_unfinished,
    simulate_kernels,
    simulate_steps,
    step_time,
)

TIMES = st.integers(0, 9)
STEPS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8)
ROWS = st.lists(st.builds(Kernel, st.just("k"), TIMES, TIMES, TIMES), min_size=1, max_size=8)
TWO = (Kernel("one", 2, 5, 1), Kernel("two", 3, 4, 2))


@pytest.mark.parametrize(("plan", "read", "device"), [(1, 2, 10), (3, 4, 2), (2, 3, 5), (0, 0, 4), (2, 2, 0)])
def test_a_step_takes_the_sum_before_and_the_longer_of_both_after(plan, read, device):
    longer = max(plan + read, device)
    for steps_ahead, expected in ((0, plan + read + device), (1, longer), (2, longer)):
        assert step_time(simulate_steps([plan] * 9, read, [device] * 9, steps_ahead)) == expected


@given(STEPS, TIMES, st.integers(0, 3))
def test_nobody_does_two_things_at_once_or_one_too_early(times, read, steps_ahead):
    plans, devices = zip(*times, strict=True)
    spans = simulate_steps(plans, read, devices, steps_ahead)
    for _, lane in spans.groupby("lane"):
        assert (lane.start[1:].to_numpy() >= lane.end[:-1].to_numpy()).all()
    of = {what: spans[spans.what == what].set_index("number") for what in (PLAN, RUN, READ)}
    assert all(one.index.tolist() == list(range(len(times))) for one in of.values())
    assert (of[RUN].start >= of[PLAN].end).all()
    assert (of[READ].start >= of[RUN].end).all()
    for step in range(steps_ahead + 1, len(times)):  # planned when all but so many have been read
        assert of[PLAN].start[step] >= of[READ].end[step - steps_ahead - 1]


@given(STEPS, TIMES)
def test_running_ahead_never_takes_longer(times, read):
    plans, devices = zip(*times, strict=True)
    before, after = (simulate_steps(plans, read, devices, ahead) for ahead in (0, 1))
    assert after.end[after.what == RUN].max() <= before.end[before.what == RUN].max()


def test_the_host_waits_where_the_device_is_not_done_and_the_device_for_the_host():
    spans = simulate_steps([1, 1], 2, [5, 5], 1)
    assert [tuple(span) for span in spans[spans.lane == "host"].iloc[:, 1:].to_numpy()] == [
        (PLAN, 0, 0, 1),
        (PLAN, 1, 1, 2),
        (WAIT, 0, 2, 6),
        (READ, 0, 6, 8),
        (WAIT, 1, 8, 11),
        (READ, 1, 11, 13),
    ]
    device = spans[spans.lane == "device"]
    assert (busy_share(device), in_gaps(device)) == (1, 0)
    waits = simulate_steps([1, 1, 1], 2, [5, 5, 5], 0)
    assert busy_share(waits) == pytest.approx(10 / 16)
    assert in_gaps(waits) == 6


def test_a_kernel_that_starts_early_asks_while_the_one_before_works():
    in_turn, early = (simulate_kernels(TWO, 1, moment) for moment in (AT_END, AFTER_WAIT))
    assert in_turn.groupby("number").end.max().tolist() == [9, 19]
    assert early.groupby("number").end.max().tolist() == [9, 15]
    assert (in_gaps(in_turn), in_gaps(early)) == (4, 0)
    assert (most_unfinished(in_turn), most_unfinished(early)) == (0, 1)


@given(ROWS, TIMES)
def test_the_rule_of_the_wait(kernels, launch):
    """After its wait a kernel has at most one unfinished one before it; whoever starts earlier ends no sooner."""
    spans = {moment: simulate_kernels(kernels, launch, moment) for moment in (AT_END, AFTER_WAIT, AT_START)}
    assert most_unfinished(spans[AT_END]) == 0
    assert most_unfinished(spans[AFTER_WAIT]) <= 1
    ends = [one.end.max() for one in spans.values()]
    assert ends == sorted(ends, reverse=True)
