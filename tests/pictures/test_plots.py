"""The pictures show the numbers that they are given: what each artist holds, in the units of its axis."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.compare import Comparison, Conditions, Ladder
from rosecourse.measure.samples import Samples
from rosecourse.measure.stats import median_interval, ratio
from rosecourse.measure.traffic import TrafficComparison
from rosecourse.measure.workload import Run
from rosecourse.pictures import plots
from rosecourse.pictures.along_steps import starts_apart
from rosecourse.pictures.lesson_figure import PANELS
from rosecourse.records.comparisons import recorded_comparison
from rosecourse.records.recordings import Recording
from rosecourse.request.session import SessionTimes
from tests.support.drawn import assert_readable
from tests.support.recordings import twice_as_fast

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
def ax():
    figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
    yield ax
    figure.canvas.draw()  # it can be drawn, whatever the test looked at
    plt.close(figure)


def lines(ax, color, marker="None"):
    return [line for line in ax.lines if line.get_color() == color and line.get_marker() == marker]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_before_and_after_differ_without_colour():
    light, dark = (np.dot(to_rgb(side["color"]), [0.2126, 0.7152, 0.0722]) for side in (plots.BEFORE, plots.AFTER))
    assert light - dark > 0.2
    assert plots.BEFORE["marker"] != plots.AFTER["marker"]


def test_throughput_shows_every_run_the_median_and_its_interval_from_zero(ax, found):
    plots.throughput_compared(ax, found, "Lesson 038")
    for side, style, bar in ((found.before, plots.BEFORE, ax.patches[0]), (found.after, plots.AFTER, ax.patches[1])):
        (dots,) = lines(ax, style["color"], style["marker"])
        assert list(dots.get_ydata()) == side.throughputs
        middle = median_interval(side.throughputs)
        assert bar.get_height() == middle.value
        text = f"{middle.value:,.0f} tokens/s\n[{middle.low:,.0f}, {middle.high:,.0f}]"
        assert text in texts(ax)
    drawn = [segment for bars in ax.collections for segment in bars.get_segments()]
    intervals = [(side.throughput.low, side.throughput.high) for side in (found.before, found.after)]
    assert [tuple(segment[:, 1]) for segment in drawn] == [pytest.approx(pair) for pair in intervals]
    low, high = ax.get_ylim()
    assert low == 0 < max(found.after.throughputs) < high
    assert ax.get_title() == f"Lesson 038\nfaster ({found.speedup} over 5 interleaved pairs)\na CPU (1 thread)"
    assert ax.get_ylabel() == "throughput (tokens/s)"


def test_one_run_a_side_is_drawn_and_nothing_is_claimed(ax):
    one = Comparison(samples("before", 0.002, runs=1), samples("after", 0.001, runs=1), CONDITIONS)
    plots.throughput_compared(ax, one, "Lesson 038")
    assert "too few pairs to tell" in ax.get_title()


def test_the_control_is_drawn_in_grey_between_before_and_after(ax, found):
    plots.throughput_compared(ax, replace(found, control=samples("control", 0.0021, spike=0.003)), "Lesson 038")
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "before",
        "before again\n(the same engine twice)",
        "after",
    ]
    red, green, blue, _ = ax.patches[1].get_facecolor()
    assert red == green == blue
    assert_readable(ax)


def test_the_figure_of_a_lesson_shows_what_the_table_says(found):
    found = replace(found, control=samples("control", 0.0021, spike=0.003))
    figure = plt.figure(figsize=(8.2, 3.6), layout="constrained")
    yours = samples("yours", 0.0012)
    plots.lesson_figure(figure, found, "Lesson 038", yours)
    figure.canvas.draw()
    for ax, (metric, statistic) in zip(figure.axes, PANELS, strict=True):
        sides = [found.before, found.control, found.after, yours]
        assert [bar.get_height() for bar in ax.patches] == [side.typical(metric, statistic) for side in sides]
        before, after, _ = found.row(metric, statistic)
        assert {ax.patches[0].get_height(), ax.patches[2].get_height()} == {before, after}
        assert ax.get_ylim()[0] == 0
    plt.close(figure)


def test_the_distribution_is_the_share_of_longer_gaps_with_its_percentiles(ax, found):
    plots.itl_distribution(ax, found, "title")
    for side, style in ((found.before, plots.BEFORE), (found.after, plots.AFTER)):
        (curve,) = lines(ax, style["color"])
        gaps, shares = curve.get_xdata(), curve.get_ydata()
        assert list(gaps) == sorted(side.each_run[2].itl_ms)  # the run in the middle
        assert (shares[0], shares[-1]) == (1.0, pytest.approx(1 / 18))
        (marks,) = lines(ax, style["color"], style["marker"])
        assert list(marks.get_xdata()) == [side.typical("ITL", name) for name in ("p50", "p95", "p99")]
        assert list(marks.get_ydata()) == [0.5, 0.05, 0.01]
    p50, p95, p99 = (found.before.typical("ITL", name) for name in ("p50", "p95", "p99"))
    assert legend(ax)[0] == f"before: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f} ms"
    assert texts(ax) == ["p50", "p95", "p99"]
    assert (ax.get_yscale(), ax.get_xlim()[0]) == ("log", 0)
    assert ax.get_xlim()[1] > p99
    assert ax.get_xlabel() == "inter-token latency (ms)"  # no gap lies beyond
    assert ax.get_ylabel() == "share of gaps longer than\nthe time below (log scale)"


def test_gaps_beyond_the_axis_are_counted_and_the_longest_is_told(ax):
    before, after = samples("before", 0.002, runs=20, tokens=100), samples("after", 0.001, runs=20, tokens=100)
    for times in before.runs[0].times:
        times.tokens[-1] += 0.3  # one stalled step, a long gap for each of the two requests
    plots.itl_distribution(ax, Comparison(before, after, CONDITIONS), "title")
    assert ax.get_xlim()[1] < 10
    longest = before.itl_ms.max()
    assert ax.get_xlabel().endswith(f"gaps beyond the axis: before 2 (the longest {longest:.1f} ms), after 0")
    assert longest > 300
    assert_readable(ax)


def bands(ax):
    """Left and right end of each pale band."""
    return [(box.get_x(), box.get_x() + box.get_width()) for box in ax.patches]


def test_along_the_steps_the_blocks_are_where_the_spikes_are(ax, found):
    plots.itl_along_steps_compared(ax, found, "title")
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted] == [4, 8]
    assert bands(ax) == []  # both requests start in one step
    for side, style in ((found.before, plots.BEFORE), (found.after, plots.AFTER)):
        (curve,) = lines(ax, style["color"])
        assert list(curve.get_xdata()) == list(range(3, 12))
        assert list(curve.get_ydata()) == list(side.itl_along_steps_ms)
        assert all(line.get_zorder() < curve.get_zorder() for line in dotted)
        assert not lines(ax, style["color"], style["marker"])  # a mark would cover the other side's
    assert legend(ax) == ["a new block begins", "before", "after"]
    assert ax.get_title() == "title\nmedian of 5 runs, a CPU (1 thread)"
    assert ax.get_xlabel() == "position in the sequence"
    assert ax.get_ylim() == (0, pytest.approx(1.1 * 5.1))


def stream(behind, tokens=10, runs=5):
    """Runs in which the second request is prefilled right after the first and begins to decode `behind` steps later."""
    moments = np.arange(tokens + behind, dtype=float)
    late = [moments[behind] + 0.5, *moments[behind + 1 :]]
    times = [SessionTimes(0.0, 0.0, [float(m) for m in one]) for one in (moments[:tokens], late)]
    return [Run(0.0, moments[-1], times, None, SchedulerStats(decode_seconds=1.0)) for _ in range(runs)]


@pytest.mark.parametrize(("behind", "expected"), [(1, [(4.5, 5.5), (8.5, 9.5)]), (2, [(4.5, 6.5), (8.5, 10.5)])])
def test_in_a_stream_a_band_shows_where_later_requests_begin_their_blocks(ax, behind, expected):
    found = Comparison(Samples("before", stream(behind)), Samples("after", stream(behind)), CONDITIONS)
    plots.itl_along_steps_compared(ax, found, "title")
    assert bands(ax) == expected
    assert legend(ax) == ["a new block begins", "other requests begin theirs", "before", "after"]
    assert_readable(ax)


def test_where_blocks_begin_in_every_step_none_is_marked(ax):
    found = Comparison(Samples("before", stream(4)), Samples("after", stream(4)), CONDITIONS)
    plots.itl_along_steps_compared(ax, found, "title")
    assert (bands(ax), legend(ax)) == ([], ["before", "after"])


def test_a_request_that_begins_no_block_in_time_moves_no_band():
    assert starts_apart(stream(3), reach=3) == 3
    assert starts_apart(stream(3), reach=2) == 0
    assert starts_apart([*stream(1, runs=2), *stream(2, runs=3)], reach=7) == 2


@pytest.mark.parametrize(("workload", "expected"), [("A", 0), ("B", 1), ("C", 1)])
def test_in_the_recorded_streams_one_request_is_a_step_ahead(workload, expected):
    found = recorded_comparison("059", workload)
    assert [starts_apart(side.runs, reach=60) for side in found.sides] == [expected, expected]


def test_recorded_gaps_are_drawn_at_the_positions_of_live_ones(ax):
    rungs = Recording.of(twice_as_fast("038", "059"))
    before, after = (
        Samples(name, side.runs) for name, side in zip(("before", "after"), rungs.rungs.values(), strict=True)
    )
    found = Comparison(before, after, replace(rungs.conditions, block_size=2))
    plots.itl_along_steps_compared(ax, found, "title")
    for side, style in zip(found.sides, (plots.BEFORE, plots.AFTER), strict=True):
        (line,) = lines(ax, style["color"])
        assert list(line.get_ydata()) == list(side.itl_along_steps_ms)
        assert list(line.get_xdata()) == [1, 2, 3]  # the prompt, one token, took position 0 in the prefill
        assert line.get_label() == side.name
    assert ax.get_xlabel() == "position in the sequence"
    assert ax.get_ylim() == (0, pytest.approx(1.1 * 8.2))
    assert ax.get_title() == "title\nmedian of 5 runs, NVIDIA H200"


def test_before_and_after_have_lines_of_different_kinds(ax, found):
    plots.itl_along_steps_compared(ax, found, "title")
    one, other = (lines(ax, style["color"])[0] for style in (plots.BEFORE, plots.AFTER))
    assert (one.get_linestyle(), other.get_linestyle()) == ("-", "--")
    assert one.get_linewidth() > 2 * other.get_linewidth()  # both can be seen where one lies on the other
    assert ax.lines.index(one) < ax.lines.index(other)


def test_the_first_gaps_may_leave_the_picture_and_a_text_says_how_long_they_are(ax, found):
    for run in found.before.runs:
        for times in run.times:
            times.tokens[0] -= 1.0  # a second for the others' prefill
    plots.itl_along_steps_compared(ax, found, "title")
    assert found.before.itl_along_steps_ms[0] > 1000
    assert ax.get_ylim() == (0, pytest.approx(1.25 * 1.1 * 5.1))
    assert texts(ax) == ["↑ others are prefilled, gaps up to: before 1002.0 ms"]
    assert_readable(ax)


def test_without_long_first_gaps_nothing_is_said_of_prefills(ax, found):
    plots.itl_along_steps_compared(ax, found, "title")
    assert texts(ax) == []


@pytest.mark.parametrize("draw", [plots.throughput_compared, plots.itl_distribution, plots.itl_along_steps_compared])
def test_a_first_lesson_is_drawn_without_a_before(ax, found, draw):
    draw(ax, Comparison(Samples("before", []), found.after, CONDITIONS), "title")
    assert not lines(ax, plots.BEFORE["color"])
    assert len(ax.lines) > 0


def test_mixed_traffic_shows_the_burst_above_the_load(found):
    figure = plt.figure(figsize=(9, 7.6), layout="constrained")
    under_load = Comparison(samples("before", 0.004), samples("after", 0.003), CONDITIONS)
    mixed = TrafficComparison(found, under_load)
    plots.traffic_compared(figure, mixed, "Lesson 038 under mixed traffic")
    burst, load = figure.axes
    assert [bar.get_height() for bar in burst.patches] == [side.throughput.value for side in found.sides]
    assert burst.get_title().startswith("All requests at once\nfaster (")
    for side, style in zip(under_load.sides, (plots.BEFORE, plots.AFTER), strict=True):
        (marks,) = lines(load, style["color"], style["marker"])
        assert list(marks.get_xdata()) == [side.typical("ITL", name) for name in ("p50", "p95", "p99")]
    assert load.get_title() == f"At {mixed.rate:.1f} requests/s, 80% of the capacity before\na CPU (1 thread)"
    assert figure.get_suptitle() == "Lesson 038 under mixed traffic"
    assert_readable(burst, load)
    plt.close(figure)


@pytest.mark.parametrize("shares", [None, [0.01, 0.1234]])
def test_the_ladder_shows_throughput_ratio_and_share_of_each_rung(ax, shares):
    rungs = [samples("035", 0.004), samples("061", 0.001)]
    found = Ladder(rungs, ["paged decode baseline", "Triton full-batch append"], CONDITIONS)
    plots.ladder_throughput(ax, found, "title", shares)
    assert [bar.get_width() for bar in ax.patches] == [rung.throughput.value for rung in rungs]
    (bars,) = (found for found in ax.collections if len(found.get_segments()) == 2)
    drawn = [tuple(segment[:, 0]) for segment in bars.get_segments()]
    assert drawn == [pytest.approx((rung.throughput.low, rung.throughput.high)) for rung in rungs]
    speedup = ratio(rungs[0].seconds, rungs[1].seconds)
    first, second = (f"{rung.throughput.value:,.0f}" for rung in rungs)
    expected = ["tokens/s", first, second]
    expected += ["ratio to the first", f"4.00x [{speedup.low:.2f}, {speedup.high:.2f}]"]
    assert texts(ax) == expected + (["times the floor", "100", "8.1"] if shares else [])
    ax.figure.canvas.draw()
    assert all(text.get_window_extent().x0 > ax.get_window_extent().x1 for text in ax.texts)
    dots = [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"]
    assert dots == [rung.throughputs for rung in rungs]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["035 paged decode baseline", "061 Triton full-batch append"]
    assert ax.yaxis_inverted()  # the first on top
    low, high = ax.get_xlim()
    assert low == 0 < rungs[1].throughput.high < high < 1.1 * max(rungs[1].throughputs)  # no room for texts in it
    assert ax.get_title() == "title\na CPU (1 thread)"


@pytest.mark.parametrize(
    "draw", [plots.throughput_compared, plots.itl_distribution, plots.itl_along_steps_compared, plots.ladder_throughput]
)
def test_no_text_lies_upon_another_or_outside_the_figure(draw, ax, found):
    ladder = Ladder([samples(str(n), 0.004 / n) for n in range(1, 7)], ["batched KV append"] * 6, CONDITIONS)
    draw(ax, ladder if draw is plots.ladder_throughput else found, "Lesson 038: a title of usual length")
    assert len(assert_readable(ax)) > 8


@pytest.mark.parametrize("rungs", [2, 6, 14])
def test_a_ladder_can_be_read_however_many_rungs_it_has(rungs, ax):
    found = Ladder(
        [samples(f"0{n}", 0.004 / n) for n in range(35, 35 + rungs)], ["batched KV append"] * rungs, CONDITIONS
    )
    plots.ladder_throughput(ax, found, "From 035 to 061", [0.0123] * rungs)
    assert len(assert_readable(ax)) > 2 * rungs
