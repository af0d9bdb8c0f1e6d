"""The picture of kernels in a row: bars where the simulation has them, in a lane for each name."""

import matplotlib.pyplot as plt
import pytest

from rosecourse import ConfigError
from rosecourse.measure.early_start_simulation import AFTER_WAIT, AT_END, AT_START, RUN, Kernel, Row, Span, simulate
from rosecourse.pictures import drawing
from rosecourse.pictures.early_start import FILLS, draw_kernels, draw_rows, headline
from tests.support.drawn import assert_readable, bars_drawn, texts_drawn

KERNELS = [Kernel(f"kernel {n}", 2, 5 + n % 2, 1) for n in range(5)]
MOMENTS = {"before": AT_END, "after": AFTER_WAIT, "too early": AT_START}


def rows(kernels=KERNELS, **times):
    return {name: simulate(kernels, lets_next=moment, **{"launch": 1} | times) for name, moment in MOMENTS.items()}


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(8.2, 5), layout="constrained")
    yield ax
    plt.close(figure)


def test_bars_stand_where_the_simulation_has_them_on_one_scale(ax):
    drawn = rows()
    draw_kernels(ax, drawn, "rows")
    middles = sorted({middle for *_, middle in bars_drawn(ax)})
    found = [sorted(bar[:3] for bar in bars_drawn(ax) if bar[3] == middle) for middle in middles]
    assert found == [
        sorted((FILLS[s.what].lower(), s.start, s.duration) for s in row.spans if s.kernel == kernel and s.duration)
        for row in drawn.values()
        for kernel in range(len(KERNELS))
    ]
    assert [label.get_text() for label in ax.get_yticklabels()] == 3 * [kernel.name for kernel in KERNELS]


@pytest.mark.parametrize("times", [{}, {"launch": 30}, {"launch": 0}])
@pytest.mark.parametrize("count", [1, 5, 24])
def test_every_text_can_be_read(times, count, monkeypatch):
    shown = []
    monkeypatch.setattr(drawing, "show", shown.append)
    draw_rows(rows([Kernel(f"a kernel with a long name, {n}", 2, 5, 1) for n in range(count)], **times), "A layer")
    ((ax,),) = (figure.axes for figure in shown)
    assert_readable(ax)


def test_the_picture_says_in_words_what_it_shows(ax):
    drawn = rows()
    draw_kernels(ax, drawn, "three rows")
    assert [text.get_text() for text in ax.texts] == [headline(name, row) for name, row in drawn.items()]
    assert headline("before", drawn["before"]) == "before: 47 µs; between kernels lie 12 µs in which none works"
    assert headline("after", drawn["after"]).endswith(" µs; between the first kernel and the last, one always works")


def test_recorded_kernels_are_one_bar_each_and_those_of_one_name_share_a_lane(ax):
    row = Row(("one", "two", "one"), (Span(RUN, 0, 0, 5), Span(RUN, 1, 3, 8), Span(RUN, 2, 8, 9)))
    draw_kernels(ax, {"recorded": row}, "recorded")
    one, two = sorted({middle for *_, middle in bars_drawn(ax)})
    assert [bar[1:] for bar in bars_drawn(ax)] == [(0, 5, one), (8, 1, one), (3, 5, two)]
    assert headline("recorded", row) == "recorded: 9 µs; between the first kernel and the last, one always runs"
    said = {text.get_text() for text in texts_drawn(ax)}
    assert {"one", "two", "from its start to its end, as recorded"} <= said
    assert "ask for weights" not in said


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "no kernels to draw"),
        (rows(KERNELS * 5), "25 kernels: at most 24"),
        ({"one": simulate([Kernel("k", 0, 0, 0)], launch=0, lets_next=AT_END)}, "give a time above 0"),
        (rows() | {"other": simulate(KERNELS, launch=1, lets_next=AT_END, unit="ms")}, "in ms, µs: give"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        draw_rows(wrong, "wrong")
