"""The whole ladder in one picture: a bar for each rung, and a decode step from its first to its last microsecond."""

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from rosecourse import LESSONS, ConfigError
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.pictures.labels import SMALL
from rosecourse.pictures.whole_ladder import REST_NAME, draw_ladder, draw_step, kinds_legend
from rosecourse.records.comparisons import recorded_comparison
from rosecourse.records.whole_ladder import RecordedRung, timeline_of, whole_ladder

RUNGS = [
    RecordedRung("035", "paged decode baseline", 1000.4, 20.0, 0.004, "a GPU"),
    RecordedRung("036", "block-table cache", 2500.0, 8.0, 0.34, "a GPU"),
]
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
    return Figure(figsize=(8, 3), layout="constrained").subplots()


def texts(ax):
    """Every text that shows, and none is too small to read."""
    shown = [one for one in ax.get_figure().findobj(Text) if one.get_visible() and one.get_text()]
    assert min(one.get_fontsize() for one in shown) >= SMALL
    return [one.get_text() for one in shown]


def test_a_bar_for_each_rung_with_its_figures(ax):
    draw_ladder(ax, RUNGS, "a title")
    assert [bar.get_width() for bar in ax.patches] == [1000.4, 2500.0]
    said = texts(ax)
    assert {"a title", "035 paged decode baseline", "1,000  (0.4 %)", "2,500  (34 %)"} <= set(said)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first lesson is on top


def test_rows_may_go_without_their_names(ax):
    draw_ladder(ax, RUNGS, "a title", named=False)
    assert "035 paged decode baseline" not in texts(ax)


def test_no_rungs_are_refused(ax):
    with pytest.raises(ConfigError, match="there are no rungs to draw"):
        draw_ladder(ax, [], "")


def test_a_step_has_the_hosts_parts_and_the_devices_kernels(ax):
    draw_step(ax, TIMELINE, "a step")
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0.0, 100.0), (10.0, 50.0), (60.0, 1.0)]
    spans = [[path.get_extents().x0, path.get_extents().x1] for c in ax.collections for path in c.get_paths()]
    assert [15.0, 20.0] in spans
    assert [30.0, 50.0] in spans
    said = texts(ax)
    assert {"a step", "host", "GPU", "forward", REST_NAME} <= set(said)
    assert "KV append" not in said  # its bar is too narrow


def test_the_legend_names_the_kinds_that_are_there(ax):
    kinds_legend(ax, [TIMELINE])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["attention", "matrix products"]


def test_the_recorded_ladder_has_every_rung_once_with_the_figures_of_its_lesson():
    found = whole_ladder("A")
    assert [rung.number for rung in found] == [rung.number for rung in LESSONS]
    last = recorded_comparison(found[-1].number, "A")
    assert found[-1].throughput == last.after.typical("total throughput", "mean")
    assert found[-1].share_of_floor == last.share_of_floor("after")
    assert timeline_of(found[-1].number, "A").step_kind == "inside"


def test_where_nothing_is_recorded_there_is_no_ladder(tmp_path):
    assert whole_ladder("A", folder=tmp_path) == []
    assert timeline_of("035", "A", folder=tmp_path) is None
