"""The pictures show the numbers that they are given: what each artist holds, in the units of its axis."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.compare import Comparison, Conditions, Ladder
from rosecourse.measure.samples import Samples
from rosecourse.measure.stats import ratio
from rosecourse.measure.workload import Run
from rosecourse.pictures import plots
from rosecourse.pictures.colours import AFTER, BEFORE
from rosecourse.records.runs import recorded_comparison, recorded_ladder
from rosecourse.request.session import SessionTimes
from tests.support.recordings import STEPS, steady, twice_as_fast, write_recording

CONDITIONS = Conditions(2, 20, 3, 4, 5, "tiny", "float32", "a CPU (1 thread)", "2.13")


def samples(name, step, spike=0.0, runs=5, tokens=10):
    """Runs of two requests, prompts of 3 tokens, a token every `step` seconds, `spike` more where a block of 4 begins.

    Run r takes r % more time than the first.
    """
    gaps = np.array([step + (spike if position % 4 == 0 else 0.0) for position in range(3, 3 + tokens - 1)])
    found = []
    for number in range(runs):
        moments = np.concatenate([[0.0], np.cumsum(gaps)]) * (1 + number / 100)
        times = [SessionTimes(0.0, 0.0, list(moments)) for _ in range(2)]
        found.append(Run(0.0, moments[-1], times, None, SchedulerStats(decode_seconds=moments[-1])))
    return Samples(name, found)


@pytest.fixture
def found():
    return Comparison(samples("before", 0.002, spike=0.003), samples("after", 0.001), CONDITIONS)


@pytest.fixture
def figure():
    figure = plt.figure(figsize=(9, 3.6), layout="constrained")
    yield figure
    figure.canvas.draw()  # it can be drawn, whatever the test looked at
    plt.close(figure)


@pytest.fixture
def ax(figure):
    return figure.add_subplot()


def test_figure_of_a_lesson_shows_what_the_table_says(figure, found):
    found, yours = replace(found, control=samples("control", 0.0021, spike=0.003)), samples("yours", 0.0012)
    plots.lesson_figure(figure, found, "Lesson 038", yours)
    sides = [found.before, found.control, found.after, yours]
    for ax, panel in zip(figure.axes, plots.PANELS, strict=True):
        medians = [side.typical(*panel) for side in sides]
        assert [bar.get_height() for bar in ax.patches] == medians
        below = [label.get_text().replace(",", "") for label in ax.get_xticklabels()]
        assert [float(text) for text in below] == pytest.approx(medians, rel=0.01)
        assert ax.get_ylim()[0] == 0


def test_blocks_along_the_steps_begin_where_the_spikes_are(ax, found):
    plots.itl_along_steps_compared(ax, found, "title")
    assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [4, 8]
    for side, style in ((found.before, BEFORE), (found.after, AFTER)):
        (curve,) = (line for line in ax.lines if line.get_color() == style["color"])
        assert curve.get_marker() == "None"  # a mark would cover the other side's
        assert list(curve.get_xdata()) == list(range(3, 12))
        assert list(curve.get_ydata()) == list(side.itl_along_steps_ms)
    assert ax.get_ylim() == (0, pytest.approx(1.1 * 5.1))


def test_control_of_another_rung_is_a_band_around_before(figure, tmp_path):
    """061 took 1.5 times as long the second time: so the band reaches from `before` to 1.5 times `before`."""
    rungs = twice_as_fast("061", "063") | twice_as_fast("062", "064")
    write_recording(tmp_path, rungs, "C", {"061": [steady(3 * step) for step in STEPS]})
    plots.lesson_figure(figure, recorded_comparison("063", "C", folder=tmp_path), "Lesson 063")
    figure.canvas.draw()
    band = figure.axes[1].patches[-1].get_extents().transformed(figure.axes[1].transData.inverted())
    assert (band.y0, band.y1) == pytest.approx((1.5 * 8.2, 1.5 * 8.2))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["before", "after", plots.OTHER_TWICE]


def test_bar_of_a_rung_has_its_rate_and_share_behind_it(ax, tmp_path):
    write_recording(tmp_path, twice_as_fast(), "A")
    ladder = recorded_ladder("A", folder=tmp_path)
    plots.draw_ladder(ax, ladder, "title")
    assert [bar.get_width() for bar in ax.patches] == [rung.throughput.value for rung in ladder.rungs]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["035 paged decode baseline", "036 block-table cache"]
    rates = [f"{rung.throughput.value:,.0f} (10 %)" for rung in ladder.rungs]
    assert [text.get_text() for text in ax.texts] == rates


@pytest.mark.parametrize("shares", [None, [0.01, 0.1234]])
def test_ladder_shows_throughput_ratio_and_share_of_each_rung(ax, shares):
    rungs = [samples("035", 0.004), samples("061", 0.001)]
    found = Ladder(rungs, ["paged decode baseline", "Triton full-batch append"], CONDITIONS)
    plots.ladder_throughput(ax, found, "title", shares)
    assert [bar.get_width() for bar in ax.patches] == [rung.throughput.value for rung in rungs]
    (bars,) = (found for found in ax.collections if len(found.get_segments()) == 2)
    drawn = [tuple(segment[:, 0]) for segment in bars.get_segments()]
    assert drawn == [pytest.approx((rung.throughput.low, rung.throughput.high)) for rung in rungs]
    times = ratio(rungs[0].each("total time"), rungs[1].each("total time")).shown(2)
    first, second = (f"{rung.throughput.value:,.0f} tokens/s" for rung in rungs)
    floors = [", 100 floors", ", 8.1 floors"] if shares else ["", ""]
    assert [text.get_text() for text in ax.texts] == [first + floors[0], f"{second}, {times}{floors[1]}"]
    assert [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"] == [r.throughputs for r in rungs]
    assert ax.yaxis_inverted()  # the first on top
