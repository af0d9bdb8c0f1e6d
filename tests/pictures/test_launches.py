"""Launches on a line: each at its time, and a replay as one of them."""

import matplotlib.pyplot as plt
import pytest

from rosecourse import ConfigError
from rosecourse.pictures.launches import REPLAY, Launched, draw_launches
from tests.support.drawn import assert_readable, bars_drawn

BEFORE = [Launched("add", 0.1 * n) for n in range(12)]
AFTER = [Launched("copy", 0.1), Launched(REPLAY, 0.2, 1.5), Launched("clone", 1.6)]


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 3), layout="constrained")
    yield ax
    plt.close(figure)


def test_each_launch_stands_at_its_time(ax):
    draw_launches(ax, {"before": BEFORE, "after": AFTER}, "two steps")
    before, after = sorted({middle for *_, middle in bars_drawn(ax)})
    starts = {lane: [start for _, start, _, middle in bars_drawn(ax) if middle == lane] for lane in (before, after)}
    assert starts == {before: pytest.approx([one.ms for one in BEFORE]), after: [0.2, 0.2, 0.1, 1.6]}
    pale = next(length for _, start, length, middle in bars_drawn(ax) if middle == after)
    assert pale == pytest.approx(1.3)
    said = [text.get_text() for text in ax.texts]
    assert said[0] == "before: the host launches 12 operations"
    assert said[1].startswith("after: the host launches 2 operations and 1 replay,")
    assert_readable(ax)


@pytest.mark.parametrize("steps", [{}, {"before": BEFORE, "after": []}])
def test_nothing_to_draw_is_refused(ax, steps):
    with pytest.raises(ConfigError, match="no launch to draw"):
        draw_launches(ax, steps, "two steps")
