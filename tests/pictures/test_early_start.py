"""The picture of kernels in a row: bars where the simulation has them, and lanes where they overlap."""

from itertools import combinations, pairwise

import pytest

from rosecourse import ConfigError
from rosecourse.measure.early_start_simulation import AFTER_WAIT, AT_END, AT_START, RUN, Kernel, Row, Span, simulate
from rosecourse.pictures.early_start import draw_rows, headline
from tests.support.diagram_reader import SVG, boxes, parse, texts

KERNELS = [Kernel(f"kernel {n}", 2, 5 + n % 2, 1) for n in range(5)]
MOMENTS = {"before": AT_END, "after": AFTER_WAIT, "too early": AT_START}


def rows(kernels=KERNELS, **times):
    return {name: simulate(kernels, lets_next=moment, **{"launch": 1} | times) for name, moment in MOMENTS.items()}


def bars(picture, name):
    """(kernel, what) -> left, top and right of each bar."""
    (group,) = (g for g in parse(picture).iter(f"{SVG}g") if g.get("data-row") == name)
    found = {}
    for rect in group.iter(f"{SVG}rect"):
        x, y, width = (float(rect.get(key)) for key in ("x", "y", "width"))
        found[int(rect.get("data-kernel")), rect.get("class")] = x, y, x + width
    return found


def test_bars_stand_where_the_simulation_has_them_on_one_scale():
    drawn = rows()
    picture = draw_rows(drawn, "rows")
    zero = bars(picture, "before")[0, "launch"][0]
    pixels = bars(picture, "before")[0, "launch"][2] - zero
    for name, row in drawn.items():
        found = bars(picture, name)
        expected = {(span.kernel, span.what): span for span in row.spans if span.duration}
        assert found.keys() == expected.keys()
        for key, (left, _, right) in found.items():
            span = expected[key]
            assert (left, right) == pytest.approx((zero + pixels * span.start, zero + pixels * span.end), abs=0.5)


def test_kernels_that_overlap_lie_in_lanes_of_their_own():
    picture = draw_rows(rows(), "rows")
    lanes = {name: len({top for _, top, _ in bars(picture, name).values()}) for name in MOMENTS}
    assert (lanes["before"], lanes["after"]) == (1, 2)
    assert lanes["too early"] > 2
    for name in MOMENTS:
        for (one, a), (other, b) in combinations(bars(picture, name).items(), 2):
            assert one[0] == other[0] or a[1] != b[1] or min(a[2], b[2]) <= max(a[0], b[0]) + 0.02


@pytest.mark.parametrize("times", [{}, {"launch": 30}, {"launch": 0}])
@pytest.mark.parametrize("count", [1, 5, 24])
def test_every_text_can_be_read(times, count):
    kernels = [Kernel("a kernel with a long name" if n % 2 else "k", 2, 5, 1) for n in range(count)]
    picture = draw_rows(rows(kernels, **times), "Kernels of a layer")
    root = parse(picture)
    assert all(int(text.get("font-size")) >= 12 for text in root.iter(f"{SVG}text"))
    found = [box for box in boxes(root) if box[0] != "rect"]
    for (one, *a), (other, *b) in combinations(found, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, other)
    for text, left, top, right, bottom in found:
        assert 0 <= left < right <= picture.width, text
        assert 0 <= top < bottom <= picture.height, text


def test_the_picture_says_in_words_what_it_shows():
    drawn = rows()
    root = parse(draw_rows(drawn, "two <rows>"))
    said = root.find(f"{SVG}title").text
    assert said == "two <rows>. " + "; ".join(headline(name, row) for name, row in drawn.items())
    assert headline("before", drawn["before"]) == "before: 47 µs; between kernels lie 12 µs in which none works"
    assert headline("after", drawn["after"]).endswith(" µs; between the first kernel and the last, one always works")
    assert root.find(f"{SVG}rect").get("fill") == "white"  # in a dark theme too


def test_recorded_kernels_are_one_bar_each():
    row = Row(("one", "two"), (Span(RUN, 0, 0, 5), Span(RUN, 1, 3, 8)))
    picture = draw_rows({"recorded": row}, "recorded")
    assert bars(picture, "recorded").keys() == {(0, RUN), (1, RUN)}
    assert headline("recorded", row) == "recorded: 8 µs; between the first kernel and the last, one always runs"
    assert {"one", "two", "from its start to its end, as recorded"} < set(texts(picture))
    assert "ask for weights" not in picture.svg


def test_the_name_of_a_narrow_bar_is_as_large_as_the_others():
    names, ends = ("attention", "project", "widen", "narrow", "q, k, v"), (18.8, 22.5, 27.7, 32.9, 37.5)
    row = Row(names, tuple(Span(RUN, n, start, end) for n, (start, end) in enumerate(pairwise((0, *ends)))))
    root = parse(draw_rows({"recorded": row, "longer": Row(("one",), (Span(RUN, 0, 0, 77.6),))}, "recorded"))
    found = [box for box in boxes(root) if box[0] in names]
    assert [name for name, *_ in found] == list(names)
    assert {text.get("font-size") for text in root.iter(f"{SVG}text") if text.text in names} == {"12"}
    assert all(one[3] < other[1] for one, other in pairwise(found))


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
