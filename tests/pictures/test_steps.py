"""Pictures of decode steps: every part has its length and its name, whatever the scale."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from rosecourse.measure.anatomy import StepTimes
from rosecourse.pictures import plots
from rosecourse.pictures.colours import COLOURS
from tests.support.drawn import assert_readable, texts_drawn

ALL = ("block_tables", "forward", "kv_append", "rest")


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
    yield ax
    plt.close(figure)


def turn(*milliseconds):
    return pd.DataFrame([dict(zip(ALL, milliseconds, strict=True))])


def drawn(ax, part):
    """Left end and width of the bars of a part, from the top."""
    found = [bar for bar in ax.patches if to_rgb(bar.get_facecolor()[:3]) == to_rgb(COLOURS[part])]
    return [(bar.get_x(), bar.get_width()) for bar in sorted(found, key=lambda bar: (bar.get_y(), bar.get_x()))]


def texts(ax):
    return {text.get_text().replace("\n", " ") for text in texts_drawn(ax)}


def test_shares_are_of_each_step_alone(ax):
    plots.step_shares(ax, StepTimes({"here": turn(1, 4, 4, 1), "recorded": turn(2, 2, 12, 4)}), "title")
    assert drawn(ax, "forward") == [pytest.approx((10, 40)), pytest.approx((10, 10))]
    assert drawn(ax, "rest") == [pytest.approx((90, 10)), pytest.approx((80, 20))]
    assert {"10.00 ms", "20.00 ms", "40", "60"} <= texts(ax)
    assert_readable(ax)
