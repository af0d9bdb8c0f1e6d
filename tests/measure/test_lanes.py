"""The simulated pipeline and recorded kernels: who waits for whom, and what is won."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rosecourse.measure.lanes import PLAN, READ, RUN, WAIT, layer_spans, simulate_steps
from tests.support.timelines import layers_of_kernels

TIMES = st.integers(0, 9)
STEPS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8)


@pytest.mark.parametrize(("plan", "read", "device"), [(1, 2, 10), (3, 4, 2), (2, 3, 5), (0, 0, 4), (2, 2, 0)])
def test_a_step_ahead_takes_the_longer_of_both(plan, read, device):
    longer = max(plan + read, device)
    for steps_ahead, expected in ((0, plan + read + device), (1, longer), (2, longer)):
        spans = simulate_steps([plan] * 9, read, [device] * 9, steps_ahead)
        assert spans[spans.what == RUN].end.diff().iloc[4] == expected


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
    assert of[RUN].end.max() <= simulate_steps(plans, read, devices, 0).query("what == @RUN").end.max()


def test_the_host_waits_for_the_device_and_the_device_for_it():
    spans = simulate_steps([1, 1], 2, [5, 5], 1)
    host = [(PLAN, 0, 0, 1), (PLAN, 1, 1, 2), (WAIT, 0, 2, 6), (READ, 0, 6, 8), (WAIT, 1, 8, 11), (READ, 1, 11, 13)]
    assert [tuple(span) for span in spans[spans.lane == "host"].iloc[:, 1:].to_numpy()] == host


def test_a_kernel_that_starts_early_waits_for_the_one_before():
    """Each starts 2 before its turn and runs for 5; the step's second and third layers are shown, from 0 on."""
    spans = layer_spans(layers_of_kernels(4, early=2), 2)
    runs = spans[spans.what == RUN]
    assert [*zip(runs.start, runs.end, strict=True)] == [(2 + 5 * n, 7 + 5 * n) for n in range(10)]
    waits = spans[spans.what == WAIT]
    assert [*zip(waits.start, waits.end, strict=True)] == [(5 * n, 5 * n + 2) for n in range(10)]
    in_turn = layer_spans(layers_of_kernels(4), 2)
    assert (set(in_turn.what), in_turn.end.max()) == ({RUN}, 50)
