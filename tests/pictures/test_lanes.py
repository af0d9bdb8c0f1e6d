"""Lanes and addresses: as PyTorch indexes the cache, and drawn where the same colour says so."""

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from rosecourse import ConfigError
from rosecourse.pictures.lanes import ELSE, HEADS, lanes_of, lanes_to_addresses
from rosecourse.pictures.sheet import OWNER_COLOURS
from tests.support.drawn import assert_readable

SIZES = {"H": 3, "D": 4, "block_size": 4, "block": 1, "pos": 2, "BLOCK_HD": 16}


@pytest.fixture
def ax():
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    yield axes
    plt.close(figure)


@pytest.mark.parametrize(
    ("H", "D", "block_size", "block", "pos"), [(3, 4, 4, 1, 2), (1, 1, 1, 0, 0), (2, 4, 2, 5, 1), (5, 3, 8, 2, 7)]
)
def test_addresses_are_those_of_the_tensor(H, D, block_size, block, pos):
    cache = torch.arange((block + 1) * H * block_size * D).view(block + 1, H, block_size, D)
    lanes = lanes_of(H, D, block_size, block, pos, BLOCK_HD=32)
    assert [lane.address for lane in lanes[: H * D]] == cache[block, :, pos].flatten().tolist()
    assert all(lane.address is None for lane in lanes[H * D :])
    assert [(lane.head, lane.dim) for lane in lanes[: H * D]] == [(h, d) for h in range(H) for d in range(D)]


def test_a_lane_and_its_element_have_one_colour(ax):
    lanes_to_addresses(ax, **SIZES)
    labels = {text.get_position(): text.get_text() for text in ax.texts}
    drawn = {}
    for cell in ax.patches:
        x, y = cell.get_xy()
        drawn.setdefault(y == 0, {})[int(labels[x + 0.5, y + 0.5])] = to_hex(cell.get_facecolor())
    lanes, elements = drawn[True], drawn[False]
    for lane in lanes_of(**SIZES):
        if lane.address is not None:
            assert elements.pop(lane.address) == lanes[lane.hd]
    assert set(elements.values()) == {to_hex(ELSE)}
    assert {hd for hd, cell in enumerate(ax.patches[:16]) if cell.get_hatch()} == {12, 13, 14, 15}
    assert_readable(ax)


def test_a_head_has_not_the_colour_of_a_request():
    assert not set(HEADS) & set(OWNER_COLOURS[:3])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"BLOCK_HD": 8}, "BLOCK_HD is 8: give 12 to 32"),
        ({"block_size": 16}, "64 elements in a block: at most 32"),
        ({"pos": 4}, "there is no slot 4 in block 1"),
        ({"H": 0}, "give 1 or more of each"),
    ],
)
def test_what_cannot_be_drawn_is_refused(ax, wrong, says):
    with pytest.raises(ConfigError, match=says):
        lanes_to_addresses(ax, **SIZES | wrong)
