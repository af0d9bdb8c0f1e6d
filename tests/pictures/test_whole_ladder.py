"""The whole ladder in one picture: a bar for each rung, and a decode step from its first to its last microsecond."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from rosecourse import LESSONS
from rosecourse.measure.stats import Ratio
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.pictures.labels import SMALL
from rosecourse.pictures.whole_ladder import REST_NAME, SCALE, draw_ladder, draw_legends, draw_step, kernels_drawn
from rosecourse.records.comparisons import recorded_comparison
from rosecourse.records.names import names_of
from rosecourse.records.recordings import recording_of
from rosecourse.records.whole_ladder import RecordedRung, WholeLadder, chained, timeline_of, whole_ladder
from tests.support.drawn import bars_drawn

RUNGS = (
    RecordedRung("035", "paged decode baseline", 1000.4, None),
    RecordedRung("036", "block-table cache", 2500.0, 2600.0),
)
LADDER = WholeLadder(RUNGS, 10_000.0, Ratio(2.6, 2.5, 2.7), "a GPU", ("2026-01-02",))
FORWARD = "roseinfer.model.forward"
TIMELINE = Timeline(
    ranges=(Range(STEP, 0.0, 100.0), Range(FORWARD, 10.0, 50.0), Range("roseinfer.kv.append_token", 60.0, 1.0)),
    kernels=(Kernel("attend", "attention", 15.0, 5.0), Kernel("gemm", "matrix", 30.0, 20.0)),
    device="a GPU",
    plain_us=90.0,
    context=7,
)


@pytest.fixture
def ax():
    return Figure(figsize=(10, 3), layout="constrained").subplots()


def texts(ax):
    """Every text that shows, and none is too small to read."""
    shown = [one for one in ax.get_figure().findobj(Text) if one.get_visible() and one.get_text()]
    assert min(one.get_fontsize() for one in shown) >= SMALL
    return [one.get_text() for one in shown]


def test_a_bar_for_each_figure_above_shares_of_the_limit(ax):
    draw_ladder(ax, LADDER, "a title")
    assert [bar.get_width() for bar in ax.patches] == [1000.4, 2500.0, 2600.0]
    assert {"a title", "035 paged decode baseline", "1,000", "2,500 and 2,600"} <= set(texts(ax))
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first lesson is on top
    shares = {label.get_text(): place for place, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)}
    assert shares == {f"{percent} %": 100 * percent for percent in (0, 10, 20, 30, 40, 50, 60)}


def test_ladders_have_one_scale_unless_a_bar_needs_more(ax):
    draw_ladder(ax, LADDER, "far from the limit")
    assert ax.get_xlim() == pytest.approx((0, SCALE * 10_000))
    near = replace(LADDER, rungs=(RUNGS[0], replace(RUNGS[1], beside_next=9000.0)))
    draw_ladder(ax, near, "near the limit")
    assert ax.get_xlim()[1] > 1.5 * 9000


def test_rows_may_go_without_their_names(ax):
    draw_ladder(ax, LADDER, "a title", named=False)
    assert "035 paged decode baseline" not in texts(ax)


def test_a_step_has_the_hosts_parts_and_the_devices_kernels(ax):
    draw_step(ax, TIMELINE, "a step")
    drawn = bars_drawn(ax)
    host, device = ([bar[1:3] for bar in drawn if bar[3] == middle] for middle in sorted({bar[3] for bar in drawn}))
    assert host == [(0, 100), (61, 39), (10, 50), (60, 1)]  # the rest, with its name on what is free of it
    assert sorted(device) == [(15, 5), (30, 20)]
    said = texts(ax)
    assert {"a step", "host", "GPU", "forward", REST_NAME} <= set(said)
    assert "KV append" not in said  # its bar is too narrow


def test_a_kernel_that_waits_until_the_step_ends_is_not_drawn():
    waits = Kernel("early", "attention", 98.0, 20.0)
    late = TIMELINE._replace(kernels=(*TIMELINE.kernels, Kernel("last", "matrix", 90.0, 11.0), waits))
    assert [kernel.name for kernel in kernels_drawn(late)] == ["attend", "gemm", "last"]
    in_time = late._replace(ranges=(Range(STEP, 0.0, 102.0), *late.ranges[1:]))
    assert [kernel.name for kernel in kernels_drawn(in_time)] == ["attend", "gemm", "last", "early"]
    hidden = TIMELINE._replace(kernels=(*TIMELINE.kernels, Kernel("beside", "matrix", 31.0, 9.0)))
    assert kernels_drawn(hidden) == kernels_drawn(TIMELINE)


def test_the_legends_name_the_parts_and_the_kinds_that_are_there(ax):
    draw_legends(ax, [TIMELINE])
    legends = [one for one in ax.get_children() if isinstance(one, Legend)]
    named = [[text.get_text() for text in legend.get_texts()] for legend in legends]
    assert named == [["host:", "forward", "KV append", "the rest"], ["GPU:", "attention", "matrix products"]]


def test_two_figures_of_a_rung_say_how_far_recordings_are_apart():
    assert LADDER.apart == pytest.approx(2600 / 2500)
    assert replace(LADDER, rungs=RUNGS[:1]).apart == 1


@pytest.fixture(scope="module")
def ladder():
    return whole_ladder("A")


def test_the_recorded_ladder_shows_the_figures_of_each_lessons_comparison(ladder):
    assert [rung.number for rung in ladder.rungs] == [rung.number for rung in LESSONS]
    product = 1.0
    for earlier, rung in pairwise(ladder.rungs):
        recorded = recorded_comparison(rung.number, "A")
        before, after = (side.typical("total throughput", "mean") for side in recorded.sides)
        assert (earlier.beside_next or earlier.throughput, rung.throughput) == (before, after)
        product *= after / before
    assert ladder.multiplied.value == pytest.approx(product)
    assert timeline_of(ladder.rungs[-1].number, "A").step_kind == "inside"


def test_a_chained_ratio_is_a_product_whose_interval_grows_as_independent_errors_do():
    found = chained([Ratio(2.0, 1.0, 4.0), Ratio(3.0, 3.0, 3.0), Ratio(5.0, 5 / 16, 5 * 8)])
    assert found.value == pytest.approx(30)
    assert found.low == pytest.approx(30 * 2 ** -math.hypot(1, 4))
    assert found.high == pytest.approx(30 * 2 ** math.hypot(1, 3))
    assert math.isnan(chained([found, Ratio(math.nan, math.nan, math.nan)]).value)


def test_the_parts_of_the_ladder_count_once_each(ladder):
    """A recording of several rungs gives one ratio: so the interval is narrower than that of all neighbours."""
    worth = [recorded_comparison(rung.number, "A").ratio("total throughput", "mean") for rung in ladder.rungs[1:]]
    neighbours, whole = chained(worth), ladder.multiplied
    assert neighbours.low < whole.low < whole.value < whole.high < neighbours.high


def test_the_limit_is_one_for_all_rungs_and_follows_from_what_a_run_must_read(ladder):
    """By hand, of 64 requests x 512 tokens: 511 steps read 247.3 MB each, and 36,864 bytes for every live position."""
    recordings = [one for name in names_of("A") if (one := recording_of(name)) is not None]
    prompt = recordings[0].conditions.prompt_tokens
    num_bytes = 511 * 247.3e6 + 64 * 36_864 * sum(range(prompt, prompt + 511))
    bandwidth = max(one.document["copy_bytes_per_second"] for one in recordings)
    assert ladder.memory_limit == pytest.approx(64 * 512 * bandwidth / num_bytes, rel=0.001)


def test_where_nothing_is_recorded_there_is_no_ladder(tmp_path):
    assert whole_ladder("A", folder=tmp_path) is None
    assert timeline_of("035", "A", folder=tmp_path) is None
