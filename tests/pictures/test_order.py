"""The picture of a step's order: stages from left to right, and what each layer does in them."""

import pytest

from rosecourse import ConfigError
from rosecourse.pictures.order import Call, order_of_calls
from tests.support.diagram_reader import boxes, parse, rows_of


def stages(picture):
    """[(stage, [what it does, ...]), ...] in their order."""
    return [(head.text, [cell.text for cell in cells]) for head, *cells in (row.values() for row in rows_of(picture))]


def test_stages_and_layers_are_in_the_order_of_the_calls():
    calls = [Call("place"), *(Call("forward", work, layer) for layer in (0, 1) for work in ("write", "attend"))]
    expected = ["write\nlayer 0", "attend\nlayer 0", "write\nlayer 1", "attend\nlayer 1"]
    assert stages(order_of_calls("a step", calls)) == [("1. place", []), ("2. forward", expected)]


def test_of_many_layers_the_first_two_and_the_last_are_drawn():
    picture = order_of_calls("a step", [Call("kv_append", "place"), *(Call("kv_append", "write", n) for n in range(6))])
    assert stages(picture) == [("1. kv_append", ["place", "write\nlayer 0", "write\nlayer 1", "…", "write\nlayer 5"])]
    assert parse(picture)[0].text == "a step. kv_append: place, write layer 0, write layer 1, …, write layer 5"


def test_everything_lies_inside_and_no_text_on_another():
    calls = [Call("place"), Call("block_tables"), *(Call("forward", "attend", layer) for layer in range(6))]
    picture = order_of_calls("a step", calls)
    found = [box for box in boxes(parse(picture)) if box[0] != "rect"]
    for n, (what, left, top, right, bottom) in enumerate(found):
        assert min(left, top) >= 0, what
        assert max(right - picture.width, bottom - picture.height) <= 0, what
        for other, l2, t2, r2, b2 in found[n + 1 :]:
            assert right <= l2 or r2 <= left or bottom <= t2 + 1 or b2 <= top + 1, (what, other)


def test_no_calls_are_refused():
    with pytest.raises(ConfigError, match="no calls are given"):
        order_of_calls("a step", [])
