"""The picture of two lanes: bars where the simulation has them, labels in place, and nothing upon anything else."""

from itertools import combinations

import pytest

from rosecourse import ConfigError
from rosecourse.measure.pipeline_simulation import Lanes, simulate
from rosecourse.pictures.two_lanes import LANE, headline, two_lanes
from tests.support.diagram_reader import SVG, boxes, parse

TIMES = {"plan": 1, "read": 2, "device": 6}


def sides(num_steps=5, **times):
    return {
        name: simulate(num_steps, steps_ahead=ahead, **TIMES | times) for name, ahead in (("before", 0), ("after", 1))
    }


def side_of(picture, name):
    (group,) = (g for g in parse(picture).iter(f"{SVG}g") if g.get("data-side") == name)
    return group


def bars(group, lane, what):
    """step -> left and right of each bar of a kind."""
    found = [r for r in group.iter(f"{SVG}rect") if (r.get("data-lane"), r.get("class")) == (lane, what)]
    places = ((r, float(r.get("x")), float(r.get("width"))) for r in found)
    return [(int(r.get("data-step")), x, x + width) for r, x, width in places]


def test_bars_stand_where_the_simulation_has_them_on_one_scale():
    drawn = sides()
    picture = two_lanes(drawn, "two sides")
    pixels = set()
    for name, lanes in drawn.items():
        group = side_of(picture, name)
        for lane, spans in (("host", lanes.host), ("device", lanes.device)):
            for what in {span.what for span in spans}:
                found = bars(group, lane, what)
                expected = [span for span in spans if span.what == what]
                assert [step for step, _, _ in found] == [span.step for span in expected]
                for (_, left, right), span in zip(found, expected, strict=True):
                    pixels.add(round((right - left) / span.duration, 2))
                    assert left == pytest.approx(bars(group, "host", "plan")[0][1] + span.start * min(pixels), abs=1.5)
    assert max(pixels) - min(pixels) < 0.2


def test_the_device_pauses_before_and_not_after():
    picture = two_lanes(sides(), "two sides")
    assert len(bars(side_of(picture, "before"), "device", "idle")) == 4
    assert bars(side_of(picture, "after"), "device", "idle") == []
    dashed = [r for r in side_of(picture, "before").iter(f"{SVG}rect") if r.get("stroke-dasharray")]
    assert {r.get("class") for r in dashed} == {"idle", "wait"}
    assert "before: a step every 9 ms; the device is busy for 67% of the time, it pauses 4 times" in picture.svg
    assert "after: a step every 6 ms; the device is busy for 100% of the time, it never pauses" in picture.svg


def test_links_lead_from_a_launch_to_its_run_and_from_there_to_the_read():
    group = side_of(two_lanes(sides(), "two sides"), "after")
    runs = {step: (left, right) for step, left, right in bars(group, "device", "run")}
    plans, reads = ({step: (x, right) for step, x, right in bars(group, "host", what)} for what in ("plan", "read"))
    links = {(g.get("class").split()[1], int(g.get("data-step"))): g for g in group.iter(f"{SVG}line")}
    assert len(links) == 10
    for (what, step), link in links.items():
        x1, x2, y1, y2 = (float(link.get(key)) for key in ("x1", "x2", "y1", "y2"))
        expected = (plans[step][1], runs[step][0]) if what == "plan" else (runs[step][1], reads[step][0])
        assert (x1, x2) == pytest.approx(expected, abs=0.05)
        assert (y1 < y2) == (what == "plan")


@pytest.mark.parametrize(
    "times", [{}, {"plan": 0.1, "read": 0.2}, {"device": 0.5}, {"read": 40}, {"plan": 0, "read": 0}]
)
@pytest.mark.parametrize("num_steps", [1, 6, 30])
def test_every_text_can_be_read(times, num_steps):
    picture = two_lanes(sides(num_steps, **times), "A step of 64 requests on a device with a name")
    root = parse(picture)
    assert all(int(text.get("font-size")) >= 12 for text in root.iter(f"{SVG}text"))
    found = [box for box in boxes(root) if box[0] != "rect"]
    for (one, *a), (other, *b) in combinations(found, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, other)
    for text, left, top, right, bottom in found:
        assert 0 <= left < right <= picture.width, text
        assert 0 <= top < bottom <= picture.height, text


def test_labels_lie_in_their_bars():
    group = side_of(two_lanes(sides(9), "labels"), "after")
    rects = [box for box in boxes(group) if box[0] == "rect" and box[4] - box[2] == LANE]
    labels = [box for box in boxes(group) if box[0] != "rect" and not box[0].startswith("after") and box[1] > 62]
    assert len(labels) >= 18
    for text, left, top, right, bottom in labels:
        assert any(r[1] <= left and right <= r[3] and r[2] <= top and bottom <= r[4] for r in rects), text


def test_the_picture_says_in_words_what_it_shows():
    drawn = sides()
    root = parse(two_lanes(drawn, "two <sides>"))
    said = root.find(f"{SVG}title").text
    assert said == "two <sides>. " + "; ".join(headline(name, lanes) for name, lanes in drawn.items())
    assert root.find(f"{SVG}rect").get("fill") == "white"  # in a dark theme too
    once = simulate(2, steps_ahead=0, **TIMES)
    assert headline("one", once).endswith("it pauses once")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "no lanes to draw"),
        ({"one": simulate(61, steps_ahead=1, **TIMES)}, "61 steps: at most 60"),
        ({"one": simulate(2, plan=0, read=0, device=0, steps_ahead=1)}, "give a time above 0"),
        (
            sides() | {"other": Lanes(*(getattr(sides()["after"], n) for n in ("host", "device")), "us")},
            "in ms, us: give",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        two_lanes(wrong, "wrong")
