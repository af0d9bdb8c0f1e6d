"""Pictures and the table of decode steps: every part has its length and its name, whatever the scale."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from rosecourse import ConfigError
from rosecourse.measure.anatomy import PART_NAMES, LadderSteps, StepTimes
from rosecourse.pictures import plots
from rosecourse.pictures.labels import APART, SMALL, axes_points, spread, text_points
from rosecourse.pictures.tables import steps_table
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


def seconds(milliseconds):
    """A turn of steps whose medians are these milliseconds of the parts; one step of each is slow."""
    parts = milliseconds if isinstance(milliseconds, dict) else dict(zip(ALL, milliseconds, strict=True))
    return {part: [ms / 1e3, ms / 1e3, ms / 1e3, 0.9] for part, ms in parts.items()}


def whole(milliseconds):
    return sum(milliseconds.values() if isinstance(milliseconds, dict) else milliseconds)


def steps_of(rungs):
    return LadderSteps(
        times=StepTimes({rung: seconds(milliseconds) for rung, milliseconds in rungs.items()}),
        busy_ms={rung: 0.25 * whole(milliseconds) for rung, milliseconds in rungs.items()},
        kernels={rung: 5210 - number for number, rung in enumerate(rungs)},
        floor_ms=0.2,
        batch=64,
        context=256,
        titles=dict.fromkeys(rungs, "identity and constant position"),
        device="NVIDIA H200",
    )


@pytest.fixture
def figure():
    figure = plt.figure(figsize=(9, 3.2), layout="constrained")
    yield figure
    plt.close(figure)


def bars(ax, part):
    """Left end and width of a part's bars, from the top."""
    colour = to_rgb(plots.COLOURS[part])
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
    times = StepTimes({"before": seconds(SIX["036"]), "after": seconds(SIX["038"])})
    plots.step_anatomies(ax, times, "Lesson 038")
    assert bars(ax, "block_tables") == [pytest.approx((0, 0.35))] * 2
    assert bars(ax, "forward") == [pytest.approx((0.35, 2.9))] * 2
    assert bars(ax, "kv_append") == [pytest.approx((3.25, 9.4)), pytest.approx((3.25, 1.9))]
    assert bars(ax, "rest") == [pytest.approx((12.65, 0.6)), pytest.approx((5.15, 0.6))]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before", "after"]
    assert ax.yaxis_inverted()  # the first on top
    assert [text.get_text() for text in ax.get_legend().get_texts()] == NAMES
    assert ax.get_xlabel().startswith("ms a step")
    assert {"Lesson 038", "13.25 ms", "5.75 ms", "KV append 9.40 ms", "forward 2.90 ms"} <= set(texts(ax))
    assert len(assert_readable(ax)) > 10


@pytest.mark.parametrize("rungs", [["035"], ["061"], ["035", "061"], ["035", "036", "061"]])
def test_each_part_of_each_bar_is_named_once_with_its_time(figure, rungs):
    figure.set_size_inches(9, 1.2 + 0.8 * len(rungs))
    ax = figure.add_subplot()
    plots.step_anatomies(ax, StepTimes({rung: seconds(SIX[rung]) for rung in rungs}), "title")
    told = " | ".join(texts(ax))
    for part, name in zip(ALL, NAMES, strict=True):
        found = [f"{name} {SIX[rung][ALL.index(part)]:.2f} ms" for rung in rungs]
        assert all(told.count(one) == found.count(one) for one in found)
    assert_readable(ax)


def test_a_part_whose_time_is_rounded_to_nothing_has_no_label(figure):
    ax = figure.add_subplot()
    parts = dict(zip(FROM_064, (0.004, 0.006, 0.08, 2.6, 0.3), strict=True))
    plots.step_anatomies(ax, StepTimes({"064": seconds(parts)}), "title")
    told = [text for text in texts(ax) if text.endswith(" ms")]
    assert [text for text in told if text.endswith(" 0.00 ms")] == []
    assert [text for text in told if text.endswith(" 0.01 ms")] == [f"{PART_NAMES[FROM_064[1]]} 0.01 ms"]
    assert PART_NAMES[FROM_064[0]] in [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_name_stands_at_its_segment(figure):
    ax = figure.add_subplot()
    plots.step_anatomies(ax, StepTimes({"035": seconds(SIX["035"])}), "title")
    where = {text.get_text().replace("\n", " "): box for text, box in texts_drawn(ax).items()}
    to_pixels = ax.transData.transform
    for part in ("block_tables", "forward", "kv_append"):
        ((left, width),) = bars(ax, part)
        box = where[f"{PART_NAMES[part]} {width:.2f} ms"]
        assert to_pixels((left, 0))[0] < box.x0 < box.x1 < to_pixels((left + width, 0))[0]
    ((left, width),) = bars(ax, "rest")  # too narrow for its name, which stands above it
    box = where["sample and the rest 0.60 ms"]
    (bar,) = (bar for bar in ax.patches if bar.get_x() == left)
    (label,) = (text for text in ax.texts if text.get_text() == "sample and the rest 0.60 ms")
    frame = label.get_bbox_patch()
    assert to_rgb(frame.get_edgecolor()[:3]) == to_rgb(plots.COLOURS["rest"])
    assert frame.get_facecolor()[:3] == (1, 1, 1)  # or it would look like a bar
    assert box.y0 > bar.get_window_extent().y1
    assert box.x0 < to_pixels((left + width / 2, 0))[0] < box.x1


@pytest.mark.parametrize(("before", "after"), [("036", "038"), ("060", "061")])
def test_no_label_stands_behind_a_bar_or_on_the_line_of_the_floor(figure, before, after):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX), before, after, "title")
    hosts = [bar.get_window_extent() for bar in ax.patches if bar.get_hatch() != "////"]
    floor = ax.transData.transform((0.2, 0))[0]
    names = tuple(PART_NAMES.values())
    labels = {text: box for text, box in texts_drawn(ax).items() if text.get_text().startswith(names) and text.axes}
    labels = {text: box for text, box in labels.items() if "ms" in text.get_text()}
    assert len(labels) == 8
    for text, box in labels.items():
        assert box.x1 < floor or floor < box.x0, text
        beside = [bar for bar in hosts if bar.y0 < (box.y0 + box.y1) / 2 < bar.y1]
        assert not beside or any(bar.x0 <= box.x0 and box.x1 <= bar.x1 for bar in beside), text


def test_where_names_do_not_fit_a_legend_names_the_parts_once(figure):
    figure.set_size_inches(3, 3)
    ax = figure.add_subplot()
    plots.step_anatomies(ax, StepTimes({"a": seconds((0.1, 0.1, 0.1, 0.1)), "b": seconds((0.1, 9, 0.1, 0.1))}), "title")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == NAMES


# -- the effect of a lesson ----------------------------------------------------------------------------------------


def test_the_effect_of_a_lesson_outlines_what_it_replaced_in_both_steps(figure):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX), "036", "038", "What lesson 038 takes away")
    assert hatched(ax, "xx") == bars(ax, "kv_append") == [pytest.approx((3.25, 9.4)), pytest.approx((3.25, 1.9))]
    assert hatched(ax, "////") == [pytest.approx((0, 13.25 / 4)), pytest.approx((0, 5.75 / 4))]
    assert ax.get_title() == "What lesson 038 takes away\n64 requests with a mean of 256 tokens each, NVIDIA H200"
    assert {"device busy, in all: 3.31 ms in 5,209 kernels and copies", "before", "after"} <= set(texts(ax))
    assert "floor 0.20 ms: weights, K and V read once" in texts(ax)
    assert_readable(ax)


def test_no_box_of_a_label_sticks_out_of_its_bar_or_is_crossed_by_a_leader(figure):
    figure.set_size_inches(8.2, 3.2)
    ax = figure.add_subplot()
    steps = steps_of({"036": (0.86, 2.10, 15.46, 0.47), "038": (0.73, 2.10, 1.85, 0.36)})
    plots.effect(ax, steps, "036", "038", "title")
    figure.canvas.draw()
    hosts = [bar.get_window_extent() for bar in ax.patches if bar.get_hatch() != "////"]
    boxes = {text: box.get_window_extent() for text in ax.texts if (box := text.get_bbox_patch()) is not None}
    for text, box in boxes.items():
        beside = [bar for bar in hosts if bar.y0 < (box.y0 + box.y1) / 2 < bar.y1]
        assert not beside or any(bar.y0 <= box.y0 and box.y1 <= bar.y1 for bar in beside), text
    drawn = list(boxes)
    for number, text in enumerate(drawn):
        if (leader := getattr(text, "arrow_patch", None)) is None:
            continue
        line = leader.get_path().transformed(leader.get_transform())
        crossed = [one for one in drawn if one is not text and line.intersects_bbox(boxes[one].padded(-1))]
        assert all(drawn.index(one) > number for one in crossed), text  # what is drawn later covers it


def test_a_label_leaves_the_hatching_of_a_narrow_part_to_be_seen(figure):
    ax = figure.add_subplot()
    steps = steps_of({"061": (0.5, 1.7, 0.8, 0.33), "062": (0.12, 1.7, 0.33, 0.32)})
    plots.effect(ax, steps, "061", "062", "title")
    assert not any("KV append\n" in text.get_text() for text in texts_drawn(ax))  # two lines would fill the segment
    assert_readable(ax)


def test_the_effect_of_several_lessons_outlines_all_that_they_replaced(figure):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX), "035", "061", "title")
    assert sorted(hatched(ax, "xx")) == sorted(bars(ax, "kv_append") + bars(ax, "block_tables"))
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
    assert sorted(hatched(ax, "xx")) == sorted(bar for part in changed for bar in bars(ax, part))
    assert [len(bars(ax, part)) for part in TIMED] == [2, 2, 2, 0, 1, 0, 1, 2]
    assert_readable(ax)


def test_the_ladder_has_each_rung_with_its_own_stages(figure):
    plots.ladder_of_steps(figure, steps_of(SIX | SECOND_HALF), "The ladder")
    first, *_ = figure.axes
    assert [len(bars(first, part)) for part in TIMED] == [4, 4, 3, 8, 10, 7, 1, 11]
    assert bars(first, "plan") == [pytest.approx((0.06, 0.08))] * 3
    assert [text.get_text() for text in first.get_legend().get_texts()] == [
        *NAMES,
        *(PART_NAMES[part] for part in ("place", "copy_blocks", "plan", "runner")),
        "device busy, in all",
    ]
    assert_readable(*figure.axes)


def test_the_device_has_a_track_of_its_own_below_the_host(figure):
    ax = figure.add_subplot()
    plots.effect(ax, steps_of(SIX), "036", "038", "title")
    tracks = [bar for bar in ax.patches if bar.get_hatch() == "////"]
    hosts = [bar for bar in ax.patches if to_rgb(bar.get_facecolor()[:3]) == to_rgb(plots.COLOURS["forward"])]
    for track, host in zip(tracks, hosts, strict=True):
        assert track.get_facecolor()[:3] == (1, 1, 1)  # open: it is not a part of the step
        assert track.get_y() > host.get_y() + host.get_height() + 0.05
        assert track.get_height() < host.get_height() / 2


@pytest.mark.parametrize(("before", "after"), [("038", "036"), ("038", "038"), ("035", "099"), ("099", "061")])
def test_an_effect_needs_two_measured_rungs_in_their_order(figure, before, after):
    with pytest.raises(ConfigError, match=f"no way up from '{before}' to '{after}': the rungs are 035, 036, 038"):
        plots.effect(figure.add_subplot(), steps_of(SIX), before, after, "title")


# -- the ladder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rungs", [{"035": SIX["035"]}, SIX, SIX | LATER])
def test_the_ladder_shows_each_rung_on_one_scale_and_can_be_read(figure, rungs):
    plots.ladder_of_steps(figure, steps_of(rungs), "The ladder")
    first, *_ = figure.axes
    assert [label.get_text()[:3] for label in first.get_yticklabels()] == list(rungs)
    assert bars(first, "forward") == [pytest.approx((ms[0], ms[1])) for ms in rungs.values()]
    assert hatched(first, "////") == [pytest.approx((0, sum(ms) / 4)) for ms in rungs.values()]
    assert {f"{sum(ms):.2f} ms" for ms in rungs.values()} <= set(texts(first))
    assert_readable(*figure.axes)
    assert figure.get_suptitle() == "The ladder\n64 requests with a mean of 256 tokens each, NVIDIA H200"


@pytest.mark.parametrize("rungs", [SIX, SIX | LATER])
def test_a_rung_too_short_to_read_is_drawn_again_on_its_own_scale(figure, rungs):
    plots.ladder_of_steps(figure, steps_of(rungs), "The ladder")
    assert len(figure.axes) == (2 if rungs is SIX else 4)
    first, second, *_ = figure.axes
    assert [label.get_text()[:3] for label in second.get_yticklabels()] == [*rungs][3:]
    assert bars(second, "kv_append") == [pytest.approx((sum(ms[:2]), ms[2])) for ms in [*rungs.values()][3:]]
    figure.canvas.draw()
    unit, wider = (float(np.diff(ax.transData.transform([(0, 0), (1, 0)])[:, 0])[0]) for ax in (first, second))
    assert second.get_title() == f"steps up to 4.65 ms again, {wider / unit:.1f} times as wide"
    named = [label.get_text()[:3] for ax in figure.axes for label in ax.get_yticklabels() if "\n" in label.get_text()]
    assert named == list(rungs)  # each has its title and the names of its parts once
    for ax in figure.axes:
        names = [text.get_text() for text in ax.get_legend().get_texts()]
        assert names == [*NAMES, "device busy, in all"]
        (floor,) = (line for line in ax.lines if line.get_linestyle() == "--")
        assert list(floor.get_xdata()) == [0.2, 0.2]


# -- labels --------------------------------------------------------------------------------------------------------


def test_labels_move_apart_as_far_as_needed_and_stay_inside():
    assert spread([50, 150], [40, 40], 200) == [50, 150]
    left, right = spread([100, 101], [40, 60], 200)
    assert right - left == pytest.approx(50 + APART)
    assert spread([0, 200], [40, 40], 200) == [20, 180]
    assert spread([190, 195], [60, 60], 200) == [103, 170]
    assert spread([10, 20], [100, 100], 200) is None
    assert spread([], [], 200) == []


def test_the_width_of_a_text_is_what_it_takes_when_drawn(figure):
    ax = figure.add_subplot()
    drawn = ax.text(0, 0, "sample and the rest\n0.60 ms", fontsize=SMALL)
    figure.canvas.draw()
    points = 72 * drawn.get_window_extent().width / figure.dpi
    assert text_points("sample and the rest\n0.60 ms") == pytest.approx(points, rel=0.05)
    assert text_points("") == 0
    width, height = axes_points(ax)
    assert 0.7 * 9 * 72 < width < 9 * 72
    assert 0.5 * 3.2 * 72 < height < 3.2 * 72


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
