"""Kernels as pictures: a bar for each class and step, and boxes that show which kernels become one."""

import matplotlib.pyplot as plt
import pytest

from rosecourse import ConfigError
from rosecourse.measure.kernel_classes import GAPS, HEAD, NORMS, Spent
from rosecourse.measure.kernel_places import QKV, WIDEN, Placed
from rosecourse.pictures.kernels import draw_layer, draw_places, draw_spent
from tests.support.drawn import assert_readable

BEFORE = {HEAD: Spent(1, 100.0), NORMS: Spent(25, 80.0), GAPS: Spent(150, 70.0)}
AFTER = {HEAD: Spent(1, 30.0), GAPS: Spent(100, 50.0)}


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
    yield ax
    plt.close(figure)


def test_a_bar_for_each_class_of_each_step(ax):
    draw_spent(ax, {"before": BEFORE, "after": AFTER}, "two steps")
    before, after = ax.containers
    assert [bar.get_width() for bar in before] == [100.0, 80.0, 70.0]
    assert [bar.get_width() for bar in after] == [30.0, 0.0, 50.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == [HEAD, NORMS, GAPS]
    said = [text.get_text() for text in ax.texts]
    assert said == [
        *("100.0 µs, 1 kernel", "80.0 µs, 25 kernels", "70.0 µs"),
        *("30.0 µs, 1 kernel", "0.0 µs, 0 kernels", "50.0 µs"),
    ]
    for bars, other in ((before[0], before[1]), (before[0], after[0])):  # each bar has a place of its own
        assert bars.get_y() + bars.get_height() <= other.get_y()
    assert_readable(ax)


def test_one_step_alone(ax):
    draw_spent(ax, {"before": BEFORE}, "one step")
    assert len(ax.containers) == 1


@pytest.mark.parametrize("steps", [{}, {"a": BEFORE, "b": AFTER, "c": AFTER}])
def test_another_number_of_steps_is_refused(ax, steps):
    with pytest.raises(ConfigError, match="give one or two"):
        draw_spent(ax, steps, "steps")


def test_each_place_of_a_layer_has_bars_and_a_line_for_its_bytes(ax):
    steps = {"before": {QKV: Placed(2, 6.0), WIDEN: Placed(2, 8.0)}, "after": {QKV: Placed(1, 4.0)}}
    draw_places(ax, steps, {QKV: 2.0, WIDEN: 4.0}, "a layer")
    before, after = ax.containers
    assert [bar.get_width() for bar in before] == [6.0, 8.0]
    assert [bar.get_width() for bar in after] == [4.0, 0.0]
    assert [text.get_text() for text in ax.texts] == [
        *("6.0 µs, 2 kernels, 3.0 times its bytes", "8.0 µs, 2 kernels, 2.0 times its bytes"),
        *("4.0 µs, 1 kernel, 2.0 times its bytes", "not seen"),
    ]
    (lines,) = (path.get_segments() for path in ax.collections)
    assert [line[0][0] for line in lines] == [2.0, 4.0]
    for line, top, bottom in zip(lines, before, after, strict=True):  # across the bars of its place
        assert line[0][1] < top.get_y() < bottom.get_y() + bottom.get_height() < line[1][1]
    assert_readable(ax)
    with pytest.raises(ConfigError, match="0 steps to draw: give one or two"):
        draw_places(ax, {}, {QKV: 2.0}, "none")


def test_joined_kernels_stand_below_those_that_they_replace(ax):
    draw_layer(ax, ["sum", "norm", "product"], [("sum and norm", 2), ("product", 1)], "a layer")
    spans = [(round(bar.get_x(), 2), round(bar.get_x() + bar.get_width(), 2)) for bar in ax.patches]
    assert spans == [(0.05, 0.95), (1.05, 1.95), (2.05, 2.95), (0.05, 1.95), (2.05, 2.95)]
    said = [text.get_text() for text in ax.texts]
    assert said == ["sum", "norm", "product", "sum and norm", "product"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before:\n3 kernels", "after:\n2 kernels"]


def test_the_work_of_a_kernel_may_go_to_both_of_its_neighbours(ax):
    draw_layer(ax, ["product", "sum and norm", "product"], [("product, sum", 1.5), ("norm, product", 1.5)], "a layer")
    spans = [(round(bar.get_x(), 2), round(bar.get_x() + bar.get_width(), 2)) for bar in ax.patches[3:]]
    assert spans == [(0.05, 1.45), (1.55, 2.95)]


def test_a_kernel_that_nothing_replaces_is_refused(ax):
    with pytest.raises(ConfigError, match="3 kernels, and 2 replaced"):
        draw_layer(ax, ["sum", "norm", "product"], [("sum and norm", 2)], "a layer")
