"""Kernels of a recorded step in a row: whole layers, and what each kernel adds."""

import pytest

from rosecourse import ConfigError
from rosecourse.measure.early_start_simulation import RUN
from rosecourse.measure.recorded_row import added_us, recorded_row
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline

NAMES = ("attention", "one", "two")


def step(*kernels):
    """A step of (kind, start, duration)."""
    made = tuple(Kernel(kind, kind, start, duration) for kind, start, duration in kernels)
    return Timeline((Range(STEP, 0.0, 1000.0),), made, "a GPU", 1000.0)


def layer(at, early=0.0):
    """A layer of 10 µs; its kernels start so much before the one before has ended."""
    return [
        ("attention", at - early, 4.0 + early),
        ("other", at + 4 - early, 2 + early),
        ("other", at + 6 - early, 3.5),
    ]


IN_TURN = step(("matrix", 9, 0.5), *layer(10), *layer(20), *layer(30), ("attention", 40, 4), ("matrix", 44, 9))
EARLY = step(("matrix", 7.5, 2), *layer(10, 1), *layer(20, 1), *layer(30, 1), ("attention", 40, 4))


def test_layers_from_the_middle_of_the_step():
    row = recorded_row(IN_TURN, NAMES, layers=1)
    assert row.names == NAMES
    assert [tuple(span) for span in row.spans] == [(RUN, 0, 0.5, 4.5), (RUN, 1, 4.5, 6.5), (RUN, 2, 6.5, 10)]
    two = recorded_row(IN_TURN, NAMES)
    assert two.names == NAMES * 2
    assert two.gaps == ((10, 10.5),)
    assert (two.end, two.unfinished) == (20, (0,) * 6)


def test_kernels_that_start_early_leave_no_gap():
    row = recorded_row(EARLY, NAMES)
    assert row.spans[0].start == 0  # when the kernel before it ends, even if it is there earlier
    assert row.gaps == ((9, 9.5),)
    assert row.unfinished == (0, 1, 1, 0, 1, 1)


def test_what_a_kernel_adds_is_from_end_to_end_however_they_overlap():
    assert added_us(IN_TURN, NAMES) == {"attention": 4.5, "one": 2, "two": 3.5}
    found = added_us(EARLY, NAMES)
    assert found == {"attention": 5.5, "one": 2, "two": 2.5}
    assert sum(found.values()) == 10  # a layer


def test_other_kernels_between_two_layers_end_a_row_of_whole_ones():
    broken = step(*layer(0), ("copy", 9.6, 0.1), *layer(10), *layer(20), *layer(30), ("attention", 40, 4))
    assert recorded_row(broken, NAMES, 3).spans[-1].end == pytest.approx(29.8)  # from 9.7 on
    with pytest.raises(ConfigError, match="3 whole layers in this step: give at most as many, and not 4"):
        recorded_row(broken, NAMES, 4)


@pytest.mark.parametrize("layers", [0, True, "2"])
def test_bad_numbers_of_layers_are_refused(layers):
    with pytest.raises(ConfigError, match=r"layers is .*: give 1 or more"):
        recorded_row(IN_TURN, NAMES, layers)


def test_a_step_without_layers_is_refused():
    with pytest.raises(ConfigError, match="0 whole layers in this step: give one with 2 or more"):
        added_us(step(("matrix", 0, 1)), NAMES)
