"""Timelines are drawn to scale."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.pictures.colours import COLOURS, KIND_COLOURS
from rosecourse.pictures.timeline import draw_replays, draw_timeline, kernels_within
from tests.support.drawn import assert_readable, bars_drawn, texts_drawn
from tests.support.timelines import FORWARD, OLD, PLAN, large, timeline_of


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4.5), layout="constrained")
    yield ax
    plt.close(figure)


def test_a_picture_has_every_range_and_kernel_at_its_time(ax):
    sides = {"before": large(), "after": large(99, 1400.0, 1, OLD[:2])}
    draw_timeline(ax, sides, 64, "Lesson 038\nNVIDIA H200")
    colours = {name: colour.lower() for name, colour in COLOURS.items()}
    drawn = bars_drawn(ax)
    lanes = sorted({middle for *_, middle in drawn})
    assert [[bar[:3] for bar in drawn if bar[3] == lane] for lane in lanes[::2]] == [
        [
            (colours["rest"], 0, 2.8),
            (colours["block_tables"], 0.05, 0.25),
            (colours["forward"], 0.35, 1.4),
            (colours["kv_append"], 1.85, 0.6),
        ],
        [
            (colours["rest"], 0, 1.4),
            (colours["block_tables"], 0.025, 0.125),
            (colours["forward"], 0.175, 0.7),
        ],
    ]
    for one, lane in zip(sides.values(), lanes[1::2], strict=True):
        kernels = one.kernels.itertuples()
        wanted = [(KIND_COLOURS[k.kind].lower(), k.start_us / 1e3, k.us / 1e3) for k in kernels]
        found = [bar[:3] for bar in drawn if bar[3] == lane]
        assert len(found) == len(wanted) > 0
        for (colour, *times), (its, *expected) in zip(sorted(found), sorted(wanted), strict=True):
            assert colour == its
            assert times == pytest.approx(expected, abs=1e-3)
    assert_readable(ax)


def test_a_picture_says_how_busy_the_device_is_and_what_each_part_takes(ax):
    draw_timeline(
        ax, {"before": large(), "after": large(99, 1400.0, 1, step_kind="boundary", context=1280)}, 64, "title"
    )
    texts = [text.get_text() for text in texts_drawn(ax)]
    busy = f"device busy {large().busy_us / 1e3:.2f} ms ({large().busy_share:.0%}) in 150 kernels and copies"
    assert f"before (inside a block; 64 requests, 256 tokens in the cache): 2.80 ms with the profiler\n{busy}" in texts
    assert any(text.startswith("after (at a block boundary; 64 requests, 1,280 tokens in the cache)") for text in texts)
    assert texts.count("forward") == 2
    assert "forward: 1.40 → 0.70 ms" in texts
    assert "KV append: 0.60 → 0.30 ms" in texts
    assert "sample and the rest: 0.55 → 0.28 ms" in texts
    assert sum(text.startswith("KV append: ") and text.endswith(" ms (40 → 1)") for text in texts) == 1


def test_a_picture_of_steps_with_other_stages_has_the_parts_of_both(ax):
    draw_timeline(ax, {"before": large(), "after": large(ranges=(PLAN, FORWARD))}, 64, "title")
    told = [text.get_text() for legend in (ax.get_legend(), *ax.artists) for text in legend.get_texts()]
    assert [text for text in told if "→" in text and "(" not in text] == [
        "plan rows: 0.00 → 0.25 ms",
        "block tables: 0.25 → 0.00 ms",
        "forward: 1.40 → 1.40 ms",
        "KV append: 0.60 → 0.00 ms",
        "sample and the rest: 0.55 → 1.15 ms",
    ]
    assert_readable(ax)


# -- steps over the whole width ------------------------------------------------------------------------------------


def test_a_kernel_that_waits_until_the_step_ends_or_beside_another_is_not_drawn():
    spans = [("attend", 15, 5), ("gemm", 30, 20), ("beside", 31, 9), ("last", 90, 11), ("early", 98, 20)]
    kernels = [(name, "other", start, us) for name, start, us in spans]
    assert kernels_within(timeline_of(kernels, 100.0)).name.tolist() == ["attend", "gemm", "last"]
    assert kernels_within(timeline_of(kernels, 102.0)).name.tolist() == ["attend", "gemm", "last", "early"]


def test_replays_lie_where_they_ran_and_the_text_says_what_is_idle(ax):
    before = timeline_of([("embed", "other", 0, 10), ("head", "matrix", 20, 60)], 100.0, plain_us=90.0)
    after = timeline_of([("embed", "other", 0, 10), ("head", "matrix", 5, 60)], 70.0, plain_us=68.0)
    draw_replays(ax, {"before": before, "after": after}, "two steps")
    spans = sorted((1e3 * start, 1e3 * length) for _, start, length, _ in bars_drawn(ax))
    # Each whole step, and its kernels: the second one of `after` counts from the end of the first.
    assert spans == [pytest.approx(one) for one in [(0, 10), (0, 10), (0, 70), (0, 100), (10, 55), (20, 60)]]
    assert [text.get_text() for text in ax.texts] == [
        "before: 100 µs with the profiler (90 without), 2 kernels and copies\nnothing runs for 30 µs of it, 30%",
        "after: 70 µs with the profiler (68 without), 2 kernels and copies\nnothing runs for 5 µs of it, 7%",
    ]
    assert_readable(ax)
