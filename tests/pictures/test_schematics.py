"""The schematics: what they show follows from what they are given, and nothing lies upon anything else."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.pictures.schematics import pinned_buffer_race, signatures
from tests.support.drawn import assert_readable


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
    assert told in texts(ax)
    assert f"signature ({len(other)}, {other[-1]})" in texts(ax)
    assert_readable(ax)


def test_without_the_wait_the_buffer_is_rewritten_before_the_copy_reads_it(ax):
    pinned_buffer_race(ax)
    spans = {}
    for text, bar in zip([t for t in ax.texts if "wait:" not in t.get_text()], ax.patches, strict=True):
        spans.setdefault(text.get_text().replace("\n", " "), []).append((bar.get_x(), bar.get_x() + bar.get_width()))
    (early, late), (copy, same_copy) = spans["write rows of step 2"], spans["copy for step 1 reads the buffer"]
    assert early[1] <= copy[0]  # the first: written before it is read
    assert round(late[0] - same_copy[1], 6) >= 0  # the second: written when it has been read
    assert spans["wait for the copy"] == [(pytest.approx(spans["the rest of step 1"][1][1]), pytest.approx(late[0]))]
    assert_readable(ax)
