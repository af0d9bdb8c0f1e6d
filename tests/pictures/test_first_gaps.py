"""The pictures of the gap after a fork hold the gaps of the runs, in milliseconds."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.compare import Comparison, Conditions
from rosecourse.measure.samples import Samples
from rosecourse.measure.workload import Run
from rosecourse.pictures.colours import AFTER, BEFORE
from rosecourse.pictures.first_gaps import first_gaps, first_gaps_ms, gaps_by_token
from rosecourse.request.session import SessionTimes
from tests.support.drawn import assert_readable

CONDITIONS = Conditions(3, 15, 3, 4, 5, "tiny", "float32", "a CPU (1 thread)", "2.13")


def side(name, first, later):
    """Five runs of three requests of 5 tokens each; run r takes r % more time than the first."""
    runs = []
    for number in range(5):
        gaps = np.array([first, later, later, later]) * (1 + number / 100)
        moments = [1.0, *(1.0 + np.cumsum(gaps))]
        times = [SessionTimes(0.0, 0.0, list(moments)) for _ in range(3)]
        runs.append(Run(0.0, moments[-1], times, None, SchedulerStats()))
    return Samples(name, runs)


@pytest.fixture
def found():
    return Comparison(side("before", 0.009, 0.002), side("after", 0.004, 0.002), CONDITIONS)


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
    yield ax
    plt.close(figure)


def test_first_gaps_are_those_between_the_first_two_tokens(found):
    gaps = first_gaps_ms(found.before)
    assert [len(one) for one in gaps] == [3] * 5
    assert gaps[4] == pytest.approx([9 * 1.04] * 3)


def test_gaps_are_drawn_by_the_number_of_their_token(ax, found):
    gaps_by_token(ax, found, "title")
    drawn = {line.get_color(): line for line in ax.lines if len(line.get_xdata()) == 4}
    for style, first in ((BEFORE, 9), (AFTER, 4)):
        line = drawn[style["color"]]
        assert list(line.get_xdata()) == [2, 3, 4, 5]
        assert list(line.get_ydata()) == pytest.approx(1.02 * np.array([first, 2, 2, 2]))
    assert all(line.get_markevery() == [0] for line in drawn.values())  # the gap after the fork
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["before", "after"]
    assert "5 runs" in ax.get_title()
    assert_readable(ax)


def test_first_and_later_gaps_are_dots_with_their_medians(ax, found):
    first_gaps(ax, found, "title")
    dots = [line for line in ax.lines if line.get_marker() in (BEFORE["marker"], AFTER["marker"])]
    expected = [9, 4, 2, 2]
    for line, first in zip(dots, expected, strict=True):
        assert list(line.get_xdata()) == pytest.approx([first * (1 + n / 100) for n in range(5)], abs=1e-3)
    bars = [line for line in ax.lines if line not in dots]
    assert [line.get_xdata()[0] for line in bars] == pytest.approx([1.02 * gap for gap in expected])
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["first gap, before", "first gap, after", "later gaps, before", "later gaps, after"]
    assert [text.get_text() for text in ax.texts] == [f"median {1.02 * gap:.2f} ms" for gap in expected]
    assert_readable(ax)


def test_a_comparison_without_a_before_has_two_rows(ax, found):
    first_gaps(ax, Comparison(Samples("before", []), found.after, CONDITIONS), "title")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first gap, after", "later gaps, after"]
