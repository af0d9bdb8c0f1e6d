"""The picture of simulated spans: bars where the simulation has them, and links between them."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.measure.lanes import AFTER_WAIT, AT_END, PLAN, READ, RUN, Kernel, simulate_kernels, simulate_steps
from rosecourse.pictures import drawing
from rosecourse.pictures.time_axis import SPANS, show_spans
from tests.support.drawn import assert_readable, bars_drawn

KERNELS = [Kernel("q, k, v", 1.5, 3.0, 1.0), Kernel("attention", 0.5, 6.0, 2.0)]


@pytest.fixture
def shown(monkeypatch):
    """The axes of each picture that was shown."""
    figures = []
    monkeypatch.setattr(drawing, "show", lambda figure: figures.extend(figure.axes))
    yield figures
    plt.close("all")


def steps(num_steps=5, plan=1, read=2, device=6):
    names = ("before", "after")
    return {name: simulate_steps([plan] * num_steps, read, [device] * num_steps, n) for n, name in enumerate(names)}


def test_bars_stand_where_the_simulation_has_them_on_one_scale(shown):
    sides = steps()
    show_spans(sides, "two sides", "ms")
    drawn = bars_drawn(shown[0])
    middles = sorted({middle for *_, middle in drawn})
    lanes = [spans[spans.lane == lane] for spans in sides.values() for lane in ("host", "device")]
    for middle, lane in zip(middles, lanes, strict=True):
        expected = [(SPANS[one.what][0].lower(), one.start, one.end - one.start) for one in lane.itertuples()]
        assert sorted(bar[:3] for bar in drawn if bar[3] == middle) == sorted(expected)


def test_links_lead_from_a_launch_to_its_run_and_from_there_to_the_read(shown):
    spans = steps()["after"]
    show_spans({"after": spans}, "one side", "ms")
    of = {what: spans[spans.what == what] for what in (PLAN, RUN, READ)}
    expected = [*zip(of[PLAN].end, of[RUN].start, strict=True), *zip(of[READ].start, of[RUN].end, strict=True)]
    assert sorted(tuple(line.get_xdata()) for line in shown[0].lines) == sorted(expected)
    assert {"0", "1", "2", "3", "4"} <= {text.get_text() for text in shown[0].texts}


def test_kernels_of_one_name_share_a_lane_and_the_legend_says_what_they_do(shown):
    sides = {moment: simulate_kernels(KERNELS * 2, 1.0, moment) for moment in (AT_END, AFTER_WAIT)}
    show_spans(sides, "kernels", "units")
    assert [label.get_text() for label in shown[0].get_yticklabels()] == ["q, k, v", "attention"] * 2
    assert {text.get_text() for text in shown[0].get_legend().get_texts()} >= {"being launched", "ask for weights"}
    assert_readable(shown[0])
