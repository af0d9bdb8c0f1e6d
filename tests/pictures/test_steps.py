"""Pictures and the table of decode steps: every part has its length and its name, whatever the scale."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from rosecourse.measure.anatomy import PART_NAMES, StepTimes
from rosecourse.pictures import plots
from rosecourse.pictures.colours import COLOURS
from rosecourse.records.steps import RecordedSteps
from tests.support.drawn import assert_readable, texts_drawn

ALL = ("block_tables", "forward", "kv_append", "rest")
NAMES = [PART_NAMES[part] for part in ALL]
TIMED = [part for part in PART_NAMES if part != "read"]  # only timelines have that
AT_063 = ("place", "copy_blocks", "block_tables", "forward", "rest")
FROM_064 = ("place", "copy_blocks", "plan", "forward", "rest")
FROM_066 = ("place", "copy_blocks", "plan", "runner", "rest")
SIX = {
    "035": (2.1, 2.9, 9.4, 0.6),
    "036": (0.35, 2.9, 9.4, 0.6),
    "038": (0.35, 2.9, 1.9, 0.6),
    "059": (0.35, 2.85, 0.85, 0.6),
    "060": (0.2, 2.8, 0.55, 0.6),
    "061": (0.2, 2.7, 0.2, 0.5),
}
SECOND_HALF = {
    "062": dict(zip(ALL, (0.15, 2.7, 0.15, 0.5), strict=True)),
    "063": dict(zip(AT_063, (0.05, 0.01, 0.15, 2.6, 0.5), strict=True)),
    "064": dict(zip(FROM_064, (0.05, 0.01, 0.08, 2.6, 0.3), strict=True)),
    "065": dict(zip(FROM_064, (0.05, 0.01, 0.08, 2.6, 0.3), strict=True)),
    "066": dict(zip(FROM_066, (0.05, 0.01, 0.08, 0.4, 0.9), strict=True)),
}


def turn(milliseconds):
    """A turn of steps whose medians are these milliseconds of the parts."""
    return pd.DataFrame([milliseconds if isinstance(milliseconds, dict) else dict(zip(ALL, milliseconds, strict=True))])


def whole(milliseconds):
    return sum(milliseconds.values() if isinstance(milliseconds, dict) else milliseconds)


class Steps(RecordedSteps):
    """Steps of rungs that are not all in the ladder."""

    titles = property(lambda self: dict.fromkeys(self.work["profiled"], "identity and constant position"))


def steps_of(rungs):
    rows = [
        (rung, number, part, one)
        for rung, milliseconds in rungs.items()
        for part, one in turn(milliseconds).iloc[0].items()
        for number in range(3)
    ]
    profiled = {
        rung: {"inside": {"busy_us": 250 * whole(milliseconds), "kernels": 5210 - number}}
        for number, (rung, milliseconds) in enumerate(rungs.items())
    }
    parts = pd.DataFrame(rows, columns=["lesson", "repetition", "part", "ms"])
    facts = {"host": {"gpu": "NVIDIA H200"}, "copy_bytes_per_second": 1e9}
    work = {"batch": 64, "context": 256, "step_bytes": 200_000, "profiled": profiled}
    return Steps(parts, pd.DataFrame(), facts, work)


@pytest.fixture
def figure():
    figure = plt.figure(figsize=(9, 3.2), layout="constrained")
    yield figure
    plt.close(figure)


def bars(ax, part):
    """Left end and width of a part's bars, from the top."""
    colour = to_rgb(COLOURS[part])
    found = [bar for bar in ax.patches if to_rgb(bar.get_facecolor()[:3]) == colour and bar.get_facecolor()[3]]
    return [(bar.get_x(), bar.get_width()) for bar in sorted(found, key=lambda bar: bar.get_y())]


def hatched(ax, hatch):
    found = [bar for bar in ax.patches if bar.get_hatch() == hatch]
    return [(bar.get_x(), bar.get_width()) for bar in sorted(found, key=lambda bar: bar.get_y())]


def texts(ax):
    return [text.get_text().replace("\n", " ") for text in texts_drawn(ax)]


# -- one engine and two --------------------------------------------------------------------------------------------


def test_each_engine_has_a_bar_of_its_parts_in_milliseconds_on_one_scale(figure):
    ax = figure.add_subplot()
    times = StepTimes({"before": turn(SIX["036"]), "after": turn(SIX["038"])})
    plots.step_anatomies(ax, times, "Lesson 038")
    assert bars(ax, "block_tables") == [pytest.approx((0, 0.35))] * 2
    assert bars(ax, "forward") == [pytest.approx((0.35, 2.9))] * 2
    assert bars(ax, "kv_append") == [pytest.approx((3.25, 9.4)), pytest.approx((3.25, 1.9))]
    assert bars(ax, "rest") == [pytest.approx((12.65, 0.6)), pytest.approx((5.15, 0.6))]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before", "after"]
    assert ax.yaxis_inverted()  # the first on top
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        *("block tables: 0.35 → 0.35 ms", "forward: 2.90 → 2.90 ms", "KV append: 9.40 → 1.90 ms"),
        "sample and the rest: 0.60 → 0.60 ms",
    ]
    assert ax.get_xlabel().startswith("ms a step")
    assert {"Lesson 038", "13.25 ms", "5.75 ms", "9.40", "2.90"} <= set(texts(ax))
    assert len(assert_readable(ax)) > 10


def test_shares_are_of_each_step_alone(figure):
    ax = figure.add_subplot()
    plots.step_shares(ax, StepTimes({"here": turn((1, 4, 4, 1)), "recorded": turn((2, 2, 12, 4))}), "title")
    assert bars(ax, "forward") == [pytest.approx((10, 40)), pytest.approx((10, 10))]
    assert bars(ax, "rest") == [pytest.approx((90, 10)), pytest.approx((80, 20))]
    assert {"10.00 ms", "20.00 ms", "40", "60"} <= set(texts(ax))
    assert_readable(ax)


# -- the effect of a lesson ----------------------------------------------------------------------------------------


def test_the_effect_of_a_lesson_outlines_what_it_replaced_in_both_steps(figure):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX), "036", "038", "What lesson 038 takes away")
    assert hatched(ax, "xx") == bars(ax, "kv_append") == [pytest.approx((3.25, 9.4)), pytest.approx((3.25, 1.9))]
    assert hatched(ax, "////") == [pytest.approx((0, 13.25 / 4)), pytest.approx((0, 5.75 / 4))]
    assert ax.get_title() == "What lesson 038 takes away\n64 requests with a mean of 256 tokens each, NVIDIA H200"
    assert {"13.25 ms device 3.31 ms, 5,209 kernels", "before", "after"} <= set(texts(ax))
    assert "floor 0.20 ms: weights, K and V read once" in texts(ax)
    assert_readable(ax)


def test_an_effect_on_the_stages_outlines_what_came_and_what_went(figure):
    """At 064: the block tables go, a plan comes, and sampling moves: place, copies and forward stay as they are."""
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX | SECOND_HALF), "063", "064", "title")
    assert sorted(hatched(ax, "xx")) == sorted(bars(ax, "block_tables") + bars(ax, "plan") + bars(ax, "rest"))
    assert [len(bars(ax, part)) for part in TIMED] == [2, 2, 1, 1, 2, 0, 0, 2]
    assert_readable(ax)


# -- labels --------------------------------------------------------------------------------------------------------
