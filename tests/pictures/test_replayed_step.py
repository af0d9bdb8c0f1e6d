"""Whole replayed steps as a picture: kernels, the time of the step, and how much of it nothing runs."""

import matplotlib.pyplot as plt
import pytest

from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.pictures.timeline import draw_replays
from tests.support.drawn import assert_readable, bars_drawn


def step(*kernels, us, plain_us):
    return Timeline((Range(STEP, 0.0, us),), tuple(Kernel(*kernel) for kernel in kernels), "a GPU", plain_us)


BEFORE = step(("embed", "other", 0, 10), ("head", "matrix", 20, 60), us=100.0, plain_us=90.0)
AFTER = step(("embed", "other", 0, 10), ("head", "matrix", 5, 60), us=70.0, plain_us=68.0)


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(8.2, 3.5), layout="constrained")
    yield ax
    plt.close(figure)


def test_kernels_lie_where_they_ran_and_the_text_says_what_is_idle(ax):
    draw_replays(ax, {"before": BEFORE, "after": AFTER}, "two steps")
    spans = sorted((start, length) for _, start, length, _ in bars_drawn(ax))
    # Each whole step, and its kernels: the second one of `after` counts from the end of the first.
    assert spans == [(0, 10), (0, 10), (0, 70), (0, 100), (10, 55), (20, 60)]
    said = [text.get_text() for text in ax.texts]
    assert said == [
        "before: 100 µs with the profiler (90 without), 2 kernels and copies\nnothing runs for 30 µs of it, 30%; "
        "the product with the vocabulary takes 60 µs",
        "after: 70 µs with the profiler (68 without), 2 kernels and copies\nnothing runs for 5 µs of it, 7%; "
        "the product with the vocabulary takes 55 µs",
    ]
    assert_readable(ax)
