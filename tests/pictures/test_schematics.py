"""The schematics: what they show follows from what they are given, and nothing lies upon anything else."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.pictures.schematics import pinned_buffer_race, signatures
from tests.support.drawn import assert_readable, bars_drawn


@pytest.fixture
def ax():
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    yield axes
    plt.close(figure)


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(
    ("one", "other", "marked", "told"),
    [
        ([5, 7], [6, 7], ["block 5", "block 6"], "the signatures are equal, the rows are not"),
        ([5, 7], [5, 7], [], "nothing has changed"),
        ([5, 7], [5, 8], ["block 7", "block 8"], "the signatures tell them apart"),
        ([5], [5, 7], ["block 7"], "the signatures tell them apart"),
    ],
)
def test_signatures_and_the_blocks_that_differ(ax, one, other, marked, told):
    signatures(ax, one, other)
    blocks = [text for text in texts(ax) if text.startswith("block ")]
    hatched = [name for name, bar in zip(blocks, ax.patches, strict=True) if bar.get_hatch()]
    assert hatched == marked
    assert told == ax.get_title()
    assert f"signature ({len(other)}, {other[-1]})" in texts(ax)
    assert_readable(ax)


def test_without_the_wait_the_buffer_is_rewritten_before_the_copy_reads_it(ax):
    pinned_buffer_race(ax)
    lanes = sorted({middle for *_, middle in bars_drawn(ax)})
    spans = {}
    for text in ax.texts:
        x, y = text.get_position()
        bars = [bar for bar in bars_drawn(ax) if bar[3] == round(y, 4) and bar[1] < x < bar[1] + bar[2]]
        for _, start, length, middle in bars:
            spans[text.get_text().replace("\n", " "), lanes.index(middle)] = (start, round(start + length, 4))
    write, copy = "write rows of step 2", "copy for step 1 reads the buffer"
    assert spans[write, 0][1] <= spans[copy, 1][0]  # the first: written before it is read
    assert spans[write, 2][0] >= spans[copy, 3][1]  # the second: written when it has been read
    assert spans["wait for the copy", 2] == (spans["the rest of step 1", 2][1], spans[write, 2][0])
    assert_readable(ax)
