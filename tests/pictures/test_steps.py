"""Pictures of decode steps: every part has its length and its name, whatever the scale."""

from itertools import accumulate

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from rosecourse.measure.anatomy import PART_NAMES, StepTimes
from rosecourse.pictures import plots
from rosecourse.pictures.colours import COLOURS
from rosecourse.records.steps import recorded_steps
from tests.support.drawn import assert_readable, texts_drawn

ALL = ("block_tables", "forward", "kv_append", "rest")


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
    yield ax
    plt.close(figure)


def turn(*milliseconds):
    return pd.DataFrame([dict(zip(ALL, milliseconds, strict=True))])


def drawn(ax, part=None, hatch=None):
    """Left end and width of the bars of a part, or with a hatch, from the top."""
    found = [bar for bar in ax.patches if bar.get_hatch() == hatch and bar.get_width()]
    if part:
        of_part = to_rgb(COLOURS[part])
        found = [bar for bar in found if bar.get_facecolor()[3] and to_rgb(bar.get_facecolor()[:3]) == of_part]
    return [(bar.get_x(), bar.get_width()) for bar in sorted(found, key=lambda bar: (bar.get_y(), bar.get_x()))]


def texts(ax):
    return {text.get_text().replace("\n", " ") for text in texts_drawn(ax)}


def test_anatomies_have_their_parts_in_milliseconds_on_one_scale(ax):
    times = StepTimes({"before": turn(0.35, 2.9, 9.4, 0.6), "after": turn(0.35, 2.9, 1.9, 0.6)})
    plots.step_anatomies(ax, times, "Lesson 038")
    assert drawn(ax, "forward") == [pytest.approx((0.35, 2.9))] * 2
    assert drawn(ax, "kv_append") == [pytest.approx((3.25, 9.4)), pytest.approx((3.25, 1.9))]
    assert drawn(ax, "rest") == [pytest.approx((12.65, 0.6)), pytest.approx((5.15, 0.6))]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before", "after"]
    assert ax.yaxis_inverted()  # the first on top
    assert {"Lesson 038", "13.25 ms", "5.75 ms", "9.40", "2.90", "KV append: 9.40 → 1.90 ms"} <= texts(ax)
    assert_readable(ax)


def test_shares_are_of_each_step_alone(ax):
    plots.step_shares(ax, StepTimes({"here": turn(1, 4, 4, 1), "recorded": turn(2, 2, 12, 4)}), "title")
    assert drawn(ax, "forward") == [pytest.approx((10, 40)), pytest.approx((10, 10))]
    assert drawn(ax, "rest") == [pytest.approx((90, 10)), pytest.approx((80, 20))]
    assert {"10.00 ms", "20.00 ms", "40", "60"} <= texts(ax)
    assert_readable(ax)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [("036", "038", {"kv_append"}), ("063", "064", {"block_tables", "plan", "rest"})],
)
def test_effect_of_a_lesson_outlines_what_it_replaced(ax, before, after, changed):
    steps = recorded_steps("A")
    plots.effect(ax, steps, before, after, "title")
    outlined = []
    for rung in (before, after):
        spent = steps.times.milliseconds(rung)
        parts = [part for part in PART_NAMES if part in spent]
        lefts = accumulate((spent[part] for part in parts), initial=0)
        bars = {part: pytest.approx((left, spent[part])) for part, left in zip(parts, lefts, strict=False)}
        assert all(bar in drawn(ax, part) for part, bar in bars.items() if spent[part])
        outlined += [bar for part, bar in bars.items() if part in changed]
    assert drawn(ax, hatch="xx") == outlined
    assert drawn(ax, hatch="////") == [pytest.approx((0, steps.busy_ms[rung])) for rung in (before, after)]
    assert f"floor {steps.floor_ms:.2f} ms: weights, K and V read once" in texts(ax)
    assert_readable(ax)
