"""The picture of two lanes: bars where the simulation has them, links between them, and nothing upon anything else."""

import matplotlib.pyplot as plt
import pytest

from rosecourse import ConfigError
from rosecourse.measure.pipeline_simulation import PLAN, READ, WAIT, Lanes, simulate
from rosecourse.pictures import drawing
from rosecourse.pictures.time_axis import WAITS
from rosecourse.pictures.two_lanes import FILLS, draw_sides, headline, two_lanes
from tests.support.drawn import assert_readable, bars_drawn

TIMES = {"plan": 1, "read": 2, "device": 6}


def sides(num_steps=5, **times):
    return {
        name: simulate(num_steps, steps_ahead=ahead, **TIMES | times) for name, ahead in (("before", 0), ("after", 1))
    }


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
    yield ax
    plt.close(figure)


def test_bars_stand_where_the_simulation_has_them_on_one_scale(ax):
    drawn = sides()
    draw_sides(ax, drawn, "two sides")
    middles = sorted({middle for *_, middle in bars_drawn(ax)})
    found = [[bar[:3] for bar in bars_drawn(ax) if bar[3] == middle] for middle in middles]
    lanes = [lane for one in drawn.values() for lane in (one.host, one.device)]
    pauses = [((), one.idle)[of_device] for one in drawn.values() for of_device in (0, 1)]
    for bars, spans, idle in zip(found, lanes, pauses, strict=True):
        expected = [(FILLS[span.what].lower(), span.start, span.duration) for span in spans]
        expected += [(WAITS.lower(), start, end - start) for start, end in idle]
        assert sorted(bars) == sorted(expected)


def test_the_device_pauses_before_and_not_after(ax):
    draw_sides(ax, sides(), "two sides")
    said = {text.get_text() for text in ax.texts}
    assert "before: a step every 9 ms; the device is busy for 67% of the time, it pauses 4 times" in said
    assert "after: a step every 6 ms; the device is busy for 100% of the time, it never pauses" in said
    assert headline("one", simulate(2, steps_ahead=0, **TIMES)).endswith("it pauses once")


def test_links_lead_from_a_launch_to_its_run_and_from_there_to_the_read(ax):
    after = {"after": sides()["after"]}
    draw_sides(ax, after, "one side")
    runs = {span.step: span for span in after["after"].device}
    expected = [(span.end, runs[span.step].start) for span in after["after"].host if span.what == PLAN]
    expected += [(span.start, runs[span.step].end) for span in after["after"].host if span.what == READ]
    assert sorted(tuple(line.get_xdata()) for line in ax.lines) == sorted(expected)


def test_bars_have_the_numbers_of_their_steps_and_colours_a_legend(ax):
    draw_sides(ax, {"after": sides()["after"]}, "one side")
    assert {"0", "1", "2", "3", "4"} <= {text.get_text() for text in ax.texts}
    assert [text.get_text().split(":")[0] for text in ax.get_legend().get_texts()] == [
        *("plan", "read", "run", "wait, or nothing to do")
    ]
    assert WAIT in FILLS


@pytest.mark.parametrize(
    "times", [{}, {"plan": 0.1, "read": 0.2}, {"device": 0.5}, {"read": 40}, {"plan": 0, "read": 0}]
)
@pytest.mark.parametrize("num_steps", [1, 30])
def test_every_text_can_be_read(times, num_steps, monkeypatch):
    shown = []
    monkeypatch.setattr(drawing, "show", shown.append)
    two_lanes(sides(num_steps, **times), "A step of 64 requests on a device with a name")
    ((ax,),) = (figure.axes for figure in shown)
    assert_readable(ax)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "no steps to draw"),
        ({"one": simulate(61, steps_ahead=1, **TIMES)}, "61 steps: at most 60"),
        ({"one": simulate(2, plan=0, read=0, device=0, steps_ahead=1)}, "give a time above 0"),
        (
            sides() | {"other": Lanes(*(getattr(sides()["after"], n) for n in ("host", "device")), "us")},
            "in ms, us: give",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        two_lanes(wrong, "wrong")
