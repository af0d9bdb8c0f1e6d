"""Bytes to the device along the steps: every step at its place, and every event in its lane."""

import matplotlib.pyplot as plt
import pytest

from rosecourse import ConfigError
from rosecourse.pictures.uploads import Upload, uploads_along_steps
from tests.support.drawn import assert_readable

AFTER = [Upload(176, 1, 0, 0), Upload(0, 0, 0, 0), Upload(16, 0, 2, 0), Upload(64, 0, 1, 1), Upload(0, 0, 0, 0)]
BEFORE = [Upload(400, one.joined, one.new_blocks, one.left) for one in AFTER]


@pytest.fixture
def figure():
    figure = plt.figure(figsize=(9, 4.6), layout="constrained")
    yield figure
    plt.close(figure)


def test_each_step_is_drawn_with_its_bytes_and_its_events(figure):
    uploads_along_steps(figure, BEFORE, AFTER, "two engines")
    together, events = figure.axes
    drawn = {patch.get_label(): patch.get_data() for patch in together.patches}
    assert drawn["before"].values.tolist() == [400] * 5
    assert drawn["after"].values.tolist() == [176, 0, 16, 64, 0]
    assert drawn["before"].edges.tolist() == drawn["after"].edges.tolist()
    assert drawn["after"].edges.tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    lanes = {line.get_label(): list(line.get_xdata()) for line in events.lines}
    assert lanes == {"joins": [0], "new block": [2, 3], "leaves": [3]}
    heights = [line.get_ydata()[0] for line in events.lines]
    assert [events.get_yticklabels()[y].get_text() for y in heights] == list(lanes)
    for ax in figure.axes:
        assert_readable(ax)


@pytest.mark.parametrize("after", [[], AFTER[1:], [*AFTER[:-1], Upload(0, 0, 0, 1)]])
def test_other_steps_are_refused(figure, after):
    with pytest.raises(ConfigError, match="give the same steps"):
        uploads_along_steps(figure, BEFORE, after, "two engines")
