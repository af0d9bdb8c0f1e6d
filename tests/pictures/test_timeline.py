"""Time axes: bars stand where a simulation or a profiled step has them, on one scale."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.measure.lanes import IN_TURN, PLAN, READ, RUN, layer_spans, simulate_steps
from rosecourse.pictures import drawing
from rosecourse.pictures.colours import COLOURS, KIND_COLOURS
from rosecourse.pictures.time_axis import SPANS, show_spans
from rosecourse.pictures.timeline import draw_replays, draw_timeline
from tests.support.drawn import assert_readable, bars_drawn, texts_drawn
from tests.support.timelines import OLD, large, layers_of_kernels, timeline_of


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4.5), layout="constrained")
    yield ax
    plt.close(figure)


@pytest.fixture
def shown(monkeypatch):
    """The axes of each picture that was shown."""
    figures = []
    monkeypatch.setattr(drawing, "show", lambda figure: figures.extend(figure.axes))
    yield figures
    plt.close("all")


# -- simulated spans ------------------------------------------------------------------------------------------------


def test_spans_stand_where_the_simulation_has_them(shown):
    sides = {name: simulate_steps([1] * 5, 2, [6] * 5, n) for n, name in enumerate(("before", "after"))}
    show_spans(sides, "two sides", "ms")
    drawn = bars_drawn(shown[0])
    middles = sorted({middle for *_, middle in drawn})
    lanes = [spans[spans.lane == lane] for spans in sides.values() for lane in ("host", "device")]
    for middle, lane in zip(middles, lanes, strict=True):
        expected = [(SPANS[one.what][0].lower(), one.start, one.end - one.start) for one in lane.itertuples()]
        assert sorted(bar[:3] for bar in drawn if bar[3] == middle) == sorted(expected)


def test_links_lead_from_a_launch_to_its_run_and_to_the_read(shown):
    spans = simulate_steps([1] * 5, 2, [6] * 5, 1)
    show_spans({"after": spans}, "one side", "ms")
    of = {what: spans[spans.what == what] for what in (PLAN, RUN, READ)}
    expected = [*zip(of[PLAN].end, of[RUN].start, strict=True), *zip(of[READ].start, of[RUN].end, strict=True)]
    assert sorted(tuple(line.get_xdata()) for line in shown[0].lines) == sorted(expected)


def test_kernels_of_one_place_share_a_lane(shown):
    show_spans({"070": layer_spans(layers_of_kernels(4), 2)}, "kernels", "µs")
    assert [label.get_text() for label in shown[0].get_yticklabels()] == list(IN_TURN)
    assert_readable(shown[0])


# -- profiled steps -------------------------------------------------------------------------------------------------


def test_timeline_has_every_range_and_kernel_at_its_time(ax):
    sides = {"before": large(), "after": large(99, 1400.0, 1, OLD[:2], step_kind="boundary", context=1280)}
    draw_timeline(ax, sides, 64, "Lesson 038\nNVIDIA H200")
    drawn = bars_drawn(ax)
    lanes = sorted({middle for *_, middle in drawn})
    parts = {"rest": (0, 2.8), "block_tables": (0.05, 0.25), "forward": (0.35, 1.4), "kv_append": (1.85, 0.6)}
    host = [(COLOURS[part].lower(), *times) for part, times in parts.items()]
    half = [(colour, start / 2, length / 2) for colour, start, length in host[:3]]
    assert [[bar[:3] for bar in drawn if bar[3] == lane] for lane in lanes[::2]] == [host, half]
    for one, lane in zip(sides.values(), lanes[1::2], strict=True):
        wanted = [(KIND_COLOURS[k.kind].lower(), k.start_us / 1e3, k.us / 1e3) for k in one.kernels.itertuples()]
        found = sorted(bar[:3] for bar in drawn if bar[3] == lane)
        assert [colour for colour, *_ in found] == [colour for colour, *_ in sorted(wanted)]
        times = [
            (pytest.approx(start, abs=1e-3), pytest.approx(length, abs=1e-3)) for _, start, length in sorted(wanted)
        ]
        assert [(start, length) for _, start, length in found] == times
    texts = [text.get_text() for text in texts_drawn(ax)]
    busy = f"device busy {large().busy_us / 1e3:.2f} ms ({large().busy_share:.0%}) in 150 kernels and copies"
    assert f"before (inside a block; 64 requests, 256 tokens in the cache): 2.80 ms with the profiler\n{busy}" in texts
    assert any(text.startswith("after (at a block boundary; 64 requests, 1,280 tokens in the cache)") for text in texts)
    assert sum(text.startswith("KV append: ") and text.endswith(" ms (40 → 1)") for text in texts) == 1
    assert_readable(ax)


def test_replays_lie_where_they_ran_and_idle_time_is_told(ax):
    before = timeline_of([("embed", "other", 0, 10), ("head", "matrix", 20, 60)], 100.0, plain_us=90.0)
    after = timeline_of([("embed", "other", 0, 10), ("head", "matrix", 5, 60)], 70.0, plain_us=68.0)
    draw_replays(ax, {"before": before, "after": after}, "two steps")
    spans = sorted((1e3 * start, 1e3 * length) for _, start, length, _ in bars_drawn(ax))
    # Each whole step, and its kernels: the second one of `after` counts from the end of the first.
    assert spans == [pytest.approx(one) for one in [(0, 10), (0, 10), (0, 70), (0, 100), (10, 55), (20, 60)]]
    assert ["30 µs of it, 30%" in text.get_text() for text in ax.texts] == [True, False]
    assert ["5 µs of it, 7%" in text.get_text() for text in ax.texts] == [False, True]
    assert_readable(ax)
