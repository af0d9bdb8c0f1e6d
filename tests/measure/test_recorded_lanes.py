"""Lanes of a recorded step: the host's ranges and the device's kernels, one step after the other."""

import pytest
from matplotlib.figure import Figure

from rosecourse import ConfigError
from rosecourse.measure.pipeline_simulation import PLAN, READ, RUN, WAIT
from rosecourse.measure.recorded_lanes import TO_HOST, recorded_lanes
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.pictures.two_lanes import draw_sides

PLACED = Range("roseinfer.decode_step_sessions.place", 10.0, 20.0)
LAUNCHED = Range("roseinfer.decode_step_sessions.run", 30.0, 70.0)
WAITED = Range("rosecourse.read", 110.0, 850.0)


def recorded(length, *kernels, ranges=(PLACED, LAUNCHED, WAITED)):
    """A step of so many microseconds. kernels: name, start and duration of each."""
    made = tuple(Kernel(name, "copy" if name == TO_HOST else "matrix", start, us) for name, start, us in kernels)
    return Timeline((Range(STEP, 0.0, length), *ranges), made, "a GPU", length)


WAITS = recorded(1000.0, ("one", 100.0, 500.0), ("two", 605.0, 290.0), (TO_HOST, 897.0, 3.0))
# The step before goes on until its tokens come; then the step that was launched at 100 begins.
BEHIND = recorded(800.0, ("one", 5.0, 300.0), (TO_HOST, 310.0, 10.0), ("one", 320.0, 475.0))


def spans(lane):
    return [(span.what, span.step, round(1e3 * span.start), round(1e3 * span.end)) for span in lane]


def test_a_step_that_is_waited_for():
    lanes = recorded_lanes(WAITS, 0, repeats=2)
    assert spans(lanes.host) == [
        *((PLAN, 0, 0, 100), (WAIT, 0, 100, 900), (READ, 0, 900, 1000)),
        *((PLAN, 1, 1000, 1100), (WAIT, 1, 1100, 1900), (READ, 1, 1900, 2000)),
    ]
    assert spans(lanes.device) == [(RUN, 0, 100, 900), (RUN, 1, 1100, 1900)]
    assert (lanes.step_time, lanes.unit) == (pytest.approx(1.0), "ms")
    assert lanes.busy_share == pytest.approx(800 / 1000)
    assert lanes.launched_before_read == (0, 0)


def test_a_step_that_is_launched_before_the_last_one_is_read():
    lanes = recorded_lanes(BEHIND, 1, repeats=2)
    assert spans(lanes.host) == [
        *((PLAN, 1, 0, 100), (WAIT, 0, 100, 320), (READ, 0, 320, 800)),
        *((PLAN, 2, 800, 900), (WAIT, 1, 900, 1120), (READ, 1, 1120, 1600)),
    ]
    assert spans(lanes.device) == [(RUN, 0, 5, 320), (RUN, 1, 320, 1120), (RUN, 2, 1120, 1595)]
    assert (lanes.idle, lanes.busy_share) == ((), 1)


def test_a_pause_in_a_step_is_seen_if_it_is_long():
    longer = recorded(1000.0, ("one", 100.0, 500.0), ("two", 640.0, 255.0), (TO_HOST, 897.0, 3.0))
    lanes = recorded_lanes(longer, 0, repeats=2)
    assert spans(lanes.device)[:2] == [(RUN, 0, 100, 600), (RUN, 0, 640, 900)]
    assert lanes.step_time == pytest.approx(1.0)
    assert len(lanes.idle) == 3


def test_a_host_that_comes_late_does_not_wait():
    late = recorded(1000.0, (TO_HOST, 50.0, 10.0), ("one", 60.0, 300.0))
    assert [span.what for span in recorded_lanes(late, 1, repeats=1).host] == [PLAN, READ]


def test_the_lanes_can_be_drawn_with_a_step_in_pieces():
    lanes = {"before": recorded_lanes(WAITS, 0), "after": recorded_lanes(BEHIND, 1)}
    ax = Figure().subplots()
    draw_sides(ax, lanes, "recorded")
    assert len(ax.lines) == 12  # links between the lanes


@pytest.mark.parametrize(
    ("timeline", "asked", "says"),
    [
        (recorded(1000.0, ("one", 100.0, 500.0)), (0,), "no tokens come to the host in this step"),
        (WAITS, (2,), "steps_ahead is 2: give 0 or 1"),
        (WAITS, (0, 0), "repeats is 0: give 1 or more"),
    ],
)
def test_what_cannot_be_lanes_is_refused(timeline, asked, says):
    with pytest.raises(ConfigError, match=says):
        recorded_lanes(timeline, *asked)
