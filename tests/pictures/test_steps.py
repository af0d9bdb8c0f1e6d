"""Pictures and the table of decode steps: every part has its length and its name, whatever the scale."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from rosecourse.measure.anatomy import PART_NAMES, StepTimes
from rosecourse.pictures import plots
from rosecourse.pictures.colours import COLOURS
from rosecourse.pictures.labels import SMALL, text_points
from rosecourse.pictures.steps import draw_stacked
from rosecourse.pictures.tables import steps_table
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
LATER = {f"0{number}": tuple(0.75**place * ms for ms in SIX["061"]) for place, number in enumerate(range(62, 70), 1)}


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


@pytest.mark.parametrize("rungs", [["035"], ["061"], ["035", "061"], ["035", "036", "061"]])
def test_the_legend_has_each_part_with_its_time_in_every_bar(figure, rungs):
    figure.set_size_inches(8.2, 1.4 + 0.8 * len(rungs))
    ax = figure.add_subplot()
    plots.step_anatomies(ax, StepTimes({rung: turn(SIX[rung]) for rung in rungs}), "title")
    told = [text.get_text() for text in ax.get_legend().get_texts()]
    for place, (name, one) in enumerate(zip(NAMES, told, strict=True)):
        assert one == f"{name}: {' → '.join(f'{SIX[rung][place]:.2f}' for rung in rungs)} ms"
    assert_readable(ax)


def test_a_time_stands_on_its_part_where_there_is_room(figure):
    ax = figure.add_subplot()
    plots.step_anatomies(ax, StepTimes({"035": turn((0.01, 2.9, 9.4, 0.6))}), "title")
    where = {text.get_text(): box for text, box in texts_drawn(ax).items()}
    to_pixels = ax.transData.transform
    for part in ("forward", "kv_append"):
        ((left, width),) = bars(ax, part)
        box = where[f"{width:.2f}"]
        assert to_pixels((left, 0))[0] < box.x0 < box.x1 < to_pixels((left + width, 0))[0]
    assert "0.01" not in where


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


def test_at_066_the_runner_comes_for_the_forward_and_the_copies_are_as_they_were(figure):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX | SECOND_HALF), "065", "066", "title")
    changed = ("plan", "forward", "runner", "rest")
    wanted = sorted(bar for part in changed for bar in bars(ax, part))
    assert sorted(hatched(ax, "xx")) == [pytest.approx(bar) for bar in wanted]
    assert [len(bars(ax, part)) for part in TIMED] == [2, 2, 2, 0, 1, 0, 1, 2]
    assert_readable(ax)


def test_the_ladder_has_each_rung_with_its_own_stages(figure):
    plots.ladder_of_steps(figure, steps_of(SIX | SECOND_HALF), "The ladder")
    first, *_ = figure.axes
    assert [len(bars(first, part)) for part in TIMED] == [4, 4, 3, 8, 10, 7, 1, 11]
    assert bars(first, "plan") == [pytest.approx((0.06, 0.08))] * 3
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == [
        "floor 0.20 ms: weights, K and V read once",
        *(PART_NAMES[part] for part in TIMED if part in steps_of(SIX | SECOND_HALF).times.parts),
        "device busy (kernels and copies)",
    ]
    assert_readable(*figure.axes)


def test_the_device_has_a_track_of_its_own_below_the_host(figure):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX), "036", "038", "title")
    tracks = [bar for bar in ax.patches if bar.get_hatch() == "////"]
    hosts = [bar for bar in ax.patches if to_rgb(bar.get_facecolor()[:3]) == to_rgb(COLOURS["forward"])]
    for track, host in zip(tracks, hosts, strict=True):
        assert track.get_facecolor()[:3] == (1, 1, 1)  # open: it is not a part of the step
        assert track.get_y() > host.get_y() + host.get_height()
        assert track.get_height() < host.get_height() / 2


def test_parts_are_stacked_with_their_sum_behind_them(figure):
    ax = figure.add_subplot()
    bars_of = {"first": pd.Series({"a": 2.0, "c": 1.0}), "second": {"a": 150.0, "b": 0.5}}
    draw_stacked(ax, bars_of, {"a": "#000000", "b": "#E69F00", "c": "#56B4E9"}, "steps")
    assert sorted((bar.get_x(), bar.get_width()) for bar in ax.patches if bar.get_width()) == [
        *((0, 2), (0, 150), (2, 1), (150, 0.5)),
    ]
    assert {"first", "second", "3 µs", "150 µs", "steps"} <= set(texts(ax))
    assert_readable(ax)


# -- the ladder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rungs", [{"035": SIX["035"]}, SIX, SIX | LATER])
def test_the_ladder_shows_each_rung_on_one_scale_and_can_be_read(figure, rungs):
    plots.ladder_of_steps(figure, steps_of(rungs), "The ladder")
    first, *_ = figure.axes
    assert [label.get_text()[:3] for label in first.get_yticklabels()] == list(rungs)
    assert bars(first, "forward") == [pytest.approx((ms[0], ms[1])) for ms in rungs.values()]
    assert hatched(first, "////") == [pytest.approx((0, sum(ms) / 4)) for ms in rungs.values()]
    for ms in rungs.values():
        assert any(text.startswith(f"{sum(ms):.2f} ms device {sum(ms) / 4:.2f} ms, 5,") for text in texts(first))
    assert_readable(*figure.axes)
    assert figure.get_suptitle() == "The ladder\n64 requests with a mean of 256 tokens each, NVIDIA H200"


@pytest.mark.parametrize("rungs", [SIX, SIX | LATER])
def test_a_rung_too_short_to_read_is_drawn_again_on_its_own_scale(figure, rungs):
    plots.ladder_of_steps(figure, steps_of(rungs), "The ladder")
    assert len(figure.axes) == (2 if rungs is SIX else 4)
    _, second, *_ = figure.axes
    assert [label.get_text()[:3] for label in second.get_yticklabels()] == [*rungs][3:]
    assert bars(second, "kv_append") == [pytest.approx((sum(ms[:2]), ms[2])) for ms in [*rungs.values()][3:]]
    assert second.get_title() == "steps up to 4.65 ms again"
    for ax in figure.axes:
        (floor,) = (line for line in ax.lines if line.get_linestyle() == "--")
        assert list(floor.get_xdata()) == [0.2, 0.2]


# -- labels --------------------------------------------------------------------------------------------------------


def test_the_width_of_a_text_is_what_it_takes_when_drawn(figure):
    ax = figure.add_subplot()
    drawn = ax.text(0, 0, "sample and the rest\n0.60 ms", fontsize=SMALL)
    figure.canvas.draw()
    points = 72 * drawn.get_window_extent().width / figure.dpi
    assert text_points("sample and the rest\n0.60 ms") == pytest.approx(points, rel=0.05)
    assert text_points("") == 0


# -- as a table ----------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_rung():
    table = steps_table(steps_of(SIX))
    assert (table.columns.name, list(table.index)) == ("rung", list(SIX))
    row = table.loc["038"]
    assert [row[f"{name} (ms)"] for name in NAMES] == pytest.approx(SIX["038"])
    assert row["step (ms)"] == pytest.approx(5.75)
    assert row["device busy (ms)"] == pytest.approx(5.75 / 4)
    assert (row["kernels and copies"], row["floor (ms)"]) == (5208, 0.2)
    assert row["times the floor"] == pytest.approx(5.75 / 0.2)


def test_a_part_that_a_rung_does_not_have_is_no_number_in_the_table():
    table = steps_table(steps_of(SIX | SECOND_HALF))
    names = [f"{PART_NAMES[part]} (ms)" for part in TIMED]
    assert list(table.columns) == [*names, "step (ms)", *steps_table(steps_of(SIX)).columns[5:]]
    there = table[names].notna().sum().tolist()
    assert there == [4, 4, 3, 8, 10, 7, 1, 11]
    assert table.loc["064", "plan rows (ms)"] == pytest.approx(0.08)
    assert table.loc["064", "step (ms)"] == pytest.approx(3.04)
