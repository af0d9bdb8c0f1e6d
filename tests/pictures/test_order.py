"""The picture of a step's order: stages from left to right, and what each layer does in them."""

import pytest

from rosecourse import ConfigError
from rosecourse.pictures.order import Call, order_of_calls
from tests.support.diagram_reader import SVG, boxes, parse


def stages(picture):
    """[(stage, [(work, layer), ...]), ...] from left to right."""
    found = []
    for group in (g for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "stage"):
        inside = [g for g in group.iter(f"{SVG}g") if g.get("class") == "call"]
        left = [float(g.find(f"{SVG}rect").get("x")) for g in inside]
        assert left == sorted(left)
        x = float(group.find(f"{SVG}rect").get("x"))
        found.append((x, group.get("data-stage"), [(g.get("data-work"), g.get("data-layer")) for g in inside]))
    assert [x for x, _, _ in found] == sorted(x for x, _, _ in found)
    return [(stage, inside) for _, stage, inside in found]


def test_stages_and_layers_are_in_the_order_of_the_calls():
    calls = [Call("place"), *(Call("forward", work, layer) for layer in (0, 1) for work in ("write", "attend"))]
    expected = [("write", "0"), ("attend", "0"), ("write", "1"), ("attend", "1")]
    assert stages(order_of_calls("a step", calls)) == [("place", []), ("forward", expected)]


def test_of_many_layers_the_first_two_and_the_last_are_drawn():
    picture = order_of_calls("a step", [Call("kv_append", "place"), *(Call("kv_append", "write", n) for n in range(6))])
    assert stages(picture) == [("kv_append", [("place", ""), ("write", "0"), ("write", "1"), ("write", "5")])]
    assert [t.text for t in parse(picture).iter(f"{SVG}text")].count("…") == 1
    assert parse(picture)[0].text == "a step. kv_append: place, write layer 0, write layer 1, …, write layer 5"


def test_everything_lies_inside_and_no_text_on_another():
    calls = [Call("place"), Call("block_tables"), *(Call("forward", "attend", layer) for layer in range(6))]
    picture = order_of_calls("a step", calls)
    found = [box for box in boxes(parse(picture)) if box[0] != "rect"]
    for n, (what, left, top, right, bottom) in enumerate(found):
        assert min(left, top) >= 0, what
        assert max(right - picture.width, bottom - picture.height) <= 0, what
        for other, l2, t2, r2, b2 in found[n + 1 :]:
            assert right <= l2 or r2 <= left or bottom <= t2 or b2 <= top, (what, other)


def test_no_calls_are_refused():
    with pytest.raises(ConfigError, match="no calls are given"):
        order_of_calls("a step", [])
