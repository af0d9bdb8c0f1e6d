"""Stacked bars: the parts of a bar lie one behind the other, and its sum stands behind it."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.measure.kernel_classes import CLASSES, GAPS
from rosecourse.pictures.stacked import CLASS_COLOURS, draw_stacked
from tests.support.drawn import assert_readable

COLOURS = {"work": "#000000", "wait": "#DDDDDD"}
BARS = {"first": {"work": 20.0, "wait": 80.0}, "second": {"wait": 2.5, "work": 5.0}, "third": {"work": 4.0}}


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
    yield ax
    plt.close(figure)


def test_parts_lie_one_behind_the_other(ax):
    draw_stacked(ax, BARS, COLOURS, "steps", "ms", floor=10.0)
    work, wait = ax.containers
    assert [(bar.get_x(), bar.get_width()) for bar in work] == [(0, 20), (0, 5), (0, 4)]
    assert [(bar.get_x(), bar.get_width()) for bar in wait] == [(20, 80), (5, 2.5)]
    assert [bar.get_y() for bar in wait] == [bar.get_y() for bar in work][:2]
    assert [text.get_text() for text in ax.texts] == ["100 ms", "7.5 ms", "4 ms"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["what the bytes need", "work", "wait"]
    assert_readable(ax)


def test_a_part_that_no_bar_has_is_not_in_the_legend(ax):
    draw_stacked(ax, {"third": BARS["third"]}, COLOURS, "a step", "ms")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["work"]


def test_without_a_legend(ax):
    draw_stacked(ax, BARS, COLOURS, "steps", "ms", legend=False)
    assert ax.get_legend() is None


def test_each_class_of_kernels_has_a_colour_of_its_own():
    assert list(CLASS_COLOURS) == [*CLASSES, GAPS]
    assert len(set(CLASS_COLOURS.values())) == len(CLASS_COLOURS)
