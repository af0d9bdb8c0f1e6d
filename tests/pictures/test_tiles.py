"""Results of products in tiles: a box for each, and above them how many programs there are."""

import matplotlib.pyplot as plt
import pytest

from rosecourse import ConfigError
from rosecourse.pictures.tiles import Cut, draw_tiles
from tests.support.drawn import assert_readable


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
    yield ax
    plt.close(figure)


def test_every_tile_is_a_box_and_no_box_leaves_the_result(ax):
    draw_tiles(ax, {"wide": Cut(70, 300, 64, 128, 1), "narrow": Cut(70, 64, 64, 16, 6)}, 132, "two products")
    boxes = [(box.get_x(), box.get_width(), round(box.get_height(), 3)) for box in ax.patches]
    assert len(boxes) == 2 * 3 + 2 * 4
    assert boxes[:2] == [(0, 128, 0.914), (0, 128, 0.086)]
    assert boxes[4:6] == [(256, 44, 0.914), (256, 44, 0.086)]  # the last column of tiles is shorter
    assert [text.get_text() for text in ax.texts] == [
        "wide, [70, 300]: 6 tiles of 64 x 128 = 6 programs, on 5% of 132 processors",
        "narrow, [70, 64]: 8 tiles of 64 x 16, each in 6 parts = 48 programs, on 36% of 132 processors",
    ]
    assert_readable(ax)


def test_more_programs_than_processors_keep_all_busy(ax):
    draw_tiles(ax, {"a": Cut(1, 300, 16, 1, 1)}, 132, "one")
    assert ax.texts[0].get_text().endswith("300 programs, on 100% of 132 processors")


@pytest.mark.parametrize("products", [{}, {"a": Cut(1, 16, 16, 16, 1), "b": Cut(2, 16, 16, 16, 1)}])
def test_results_of_one_batch_are_asked_for(ax, products):
    with pytest.raises(ConfigError, match="give some of one batch"):
        draw_tiles(ax, products, 132, "none")
