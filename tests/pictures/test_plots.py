"""The pictures show the numbers that they are given: what each artist holds, in the units of its axis."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.compare import Comparison, Conditions, Ladder
from rosecourse.measure.samples import Samples
from rosecourse.measure.stats import median_interval, ratio
from rosecourse.measure.workload import Run
from rosecourse.pictures import plots
from rosecourse.records.comparisons import recorded_comparison
from rosecourse.request.session import SessionTimes

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
    assert ax.get_title() == f"Lesson 038: faster ({found.speedup} over 5 interleaved pairs)\na CPU (1 thread)"
    assert ax.get_ylabel() == "throughput (tokens/s)"


def test_one_run_a_side_is_drawn_and_nothing_is_claimed(ax):
    one = Comparison(samples("before", 0.002, runs=1), samples("after", 0.001, runs=1), CONDITIONS)
    plots.throughput_compared(ax, one, "Lesson 038")
    assert "too few pairs to tell" in ax.get_title()


def test_the_distribution_is_the_share_of_longer_gaps_with_its_percentiles(ax, found):
    plots.itl_distribution(ax, found, "title")
    for side, style in ((found.before, plots.BEFORE), (found.after, plots.AFTER)):
        (curve,) = lines(ax, style["color"])
        gaps, shares = curve.get_xdata(), curve.get_ydata()
        assert list(gaps) == sorted(side.itl_ms)
        assert len(gaps) == 5 * 2 * 9
        assert (shares[0], shares[-1]) == (1.0, pytest.approx(1 / 90))
        (marks,) = lines(ax, style["color"], style["marker"])
        assert tuple(marks.get_xdata()) == side.itl_percentiles_ms
        assert list(marks.get_ydata()) == [0.5, 0.05, 0.01]
    p50, p95, p99 = found.before.itl_percentiles_ms
    assert legend(ax)[0] == f"before: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f} ms (N = 90)"
    assert texts(ax) == ["p50", "p95", "p99"]
    assert (ax.get_yscale(), ax.get_xlim()[0]) == ("log", 0)
    assert ax.get_xlim()[1] > max(found.before.itl_percentiles_ms)


def test_along_the_steps_the_blocks_are_where_the_spikes_are(ax, found):
    plots.itl_along_steps_compared(ax, found, "title")
    boundaries = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]
    assert boundaries == [4, 8]
    for side, style in ((found.before, plots.BEFORE), (found.after, plots.AFTER)):
        (curve,) = lines(ax, style["color"])
        assert list(curve.get_xdata()) == list(range(3, 12))
        assert list(curve.get_ydata()) == list(side.itl_along_steps_ms)
        (marks,) = lines(ax, style["color"], style["marker"])
        assert list(marks.get_xdata()) == [4, 8]
    (marks,) = lines(ax, plots.BEFORE["color"], plots.BEFORE["marker"])
    assert list(marks.get_ydata()) == pytest.approx([5.1, 5.1])  # 2 + 3 ms, and 2 % in the middle one of five runs
    assert legend(ax) == [
        "a new block begins",
        f"before: median 2.04, highest 5.10 ms; p99 of all gaps {found.before.itl_percentiles_ms[2]:.2f} ms",
        f"after: median 1.02, highest 1.02 ms; p99 of all gaps {found.after.itl_percentiles_ms[2]:.2f} ms",
    ]
    assert ax.get_title() == "title\nmedian of 5 runs, a CPU (1 thread)"
    assert ax.get_xlabel() == "position in the sequence"
    assert ax.get_ylim() == (0, pytest.approx(1.1 * 5.1))


def test_two_anatomies_share_a_scale(ax):
    before = {"block_tables": [0.001], "forward": [0.002, 0.003, 0.9], "kv_append": [0.004], "rest": [0.0005]}
    after = before | {"kv_append": [0.001]}
    plots.step_anatomies(ax, {"before 038": before, "after 038": after}, "title")
    widths = {}
    for container in ax.containers:
        first, second = container
        assert first.get_y() < second.get_y()
        widths[to_rgb(first.get_facecolor()[:3])] = (first.get_width(), second.get_width())
        assert second.get_facecolor() == first.get_facecolor()
    assert widths[to_rgb(plots.COLOURS["kv_append"])] == pytest.approx((4.0, 1.0))
    assert widths[to_rgb(plots.COLOURS["forward"])] == pytest.approx((3.0, 3.0))
    last = ax.containers[-1]
    assert [bar.get_x() + bar.get_width() for bar in last] == pytest.approx([8.5, 5.5])
    assert "KV append: 4.00 → 1.00 ms" in legend(ax)
    assert texts(ax) == ["8.50 ms", "5.50 ms"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before 038", "after 038"]
    assert ax.yaxis_inverted()  # the first on top
    assert ax.get_xlim() == (0, pytest.approx(1.12 * 8.5))


def test_recorded_gaps_are_drawn_token_by_token(ax):
    found = recorded_comparison("059")
    plots.itl_along_steps_compared(ax, found, "title")
    for side, style in zip(found.sides, (plots.BEFORE, plots.AFTER), strict=True):
        (line,) = lines(ax, style["color"])
        assert list(line.get_ydata()) == list(side.itl_along_steps_ms)
        assert list(line.get_xdata()[[0, -1]]) == [2, 256]  # the first token has no gap before it
        assert f"p99 of all gaps {side.figure('ITL', 'p99'):.2f} ms" in line.get_label()
        assert f"highest {max(line.get_ydata()[plots.SETTLED :]):.2f} ms" in line.get_label()
        assert max(line.get_ydata()[plots.SETTLED :]) < ax.get_ylim()[1]
    assert "a new block begins" not in legend(ax)  # a file does not say how long the prompt was
    assert ax.get_xlabel() == "token of the request"
    assert ax.get_ylim()[0] == 0
    assert ax.get_title() == f"title\nmedian of {len(found.after.runs)} runs, NVIDIA H200"


def test_the_first_gaps_may_leave_the_picture(ax, found):
    for run in found.before.runs:
        for times in run.times:
            times.tokens[0] -= 1.0  # a second for the others' prefill
    plots.itl_along_steps_compared(ax, found, "title")
    assert found.before.itl_along_steps_ms[0] > 1000
    assert ax.get_ylim() == (0, pytest.approx(1.1 * 5.1))
    assert "highest 5.10 ms" in legend(ax)[1]


@pytest.mark.parametrize("draw", [plots.throughput_compared, plots.itl_distribution, plots.itl_along_steps_compared])
def test_a_first_lesson_is_drawn_without_a_before(ax, found, draw):
    draw(ax, Comparison(Samples("before", []), found.after, CONDITIONS), "title")
    assert not lines(ax, plots.BEFORE["color"])
    assert len(ax.lines) > 0


@pytest.mark.parametrize("shares", [None, [0.01, 0.1234]])
def test_the_ladder_shows_throughput_ratio_and_share_of_each_rung(ax, shares):
    rungs = [samples("035", 0.004), samples("061", 0.001)]
    found = Ladder(rungs, ["paged decode baseline", "Triton full-batch append"], CONDITIONS)
    plots.ladder_throughput(ax, found, "title", shares)
    assert [bar.get_height() for bar in ax.patches] == [rung.throughput.value for rung in rungs]
    (bars,) = (found for found in ax.collections if len(found.get_segments()) == 2)
    drawn = [tuple(segment[:, 1]) for segment in bars.get_segments()]
    assert drawn == [pytest.approx((rung.throughput.low, rung.throughput.high)) for rung in rungs]
    speedup = ratio(rungs[0].seconds, rungs[1].seconds)
    expected = f"{rungs[1].throughput.value:,.0f}\n4.00x [{speedup.low:.2f}, {speedup.high:.2f}]"
    assert texts(ax)[1] == expected + ("\n12 % of the floor" if shares else "")
    assert [label.get_text().splitlines()[0] for label in ax.get_xticklabels()] == ["035", "061"]
    low, high = ax.get_ylim()
    assert low == 0 < rungs[1].throughput.high < high
    assert ax.get_title() == "title\na CPU (1 thread)"


def test_the_ladder_shows_a_time_of_each_rung_in_milliseconds(ax):
    rungs = [samples("before", 0.004), samples("yours", 0.001)]
    found = Ladder(rungs, ["paged decode baseline", "mine"], CONDITIONS)
    plots.ladder_times(ax, found, "total time", "title")
    expected = [1e3 * rung.figure("total time", "p50") for rung in rungs]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(expected)
    times = found.ratios("total time")[1]
    assert texts(ax) == [f"{expected[0]:,.2f} ms", f"{expected[1]:,.2f} ms\n4.00x [{times.low:.2f}, {times.high:.2f}]"]
    assert ax.get_ylabel() == "total time (ms, less is better)"


@pytest.mark.parametrize(
    "draw", [plots.throughput_compared, plots.itl_distribution, plots.itl_along_steps_compared, plots.ladder_throughput]
)
def test_no_text_lies_upon_another_or_outside_the_figure(draw, ax, found):
    ladder = Ladder([samples(str(n), 0.004 / n) for n in range(1, 7)], ["batched KV append"] * 6, CONDITIONS)
    draw(ax, ladder if draw is plots.ladder_throughput else found, "Lesson 038: a title of usual length")
    ax.figure.canvas.draw()
    labels = [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label]
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        labels += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    labels += ax.get_legend().get_texts() if ax.get_legend() else []
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    assert len(boxes) > 8
    figure = ax.figure.bbox
    for number, box in enumerate(boxes):
        assert 0 <= box.x0 < box.x1 <= figure.width
        assert 0 <= box.y0 < box.y1 <= figure.height
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
