"""A whole replayed step from a window that has cut layers off: all kernels of it, and the time in which none runs."""

import pytest

from rosecourse import ConfigError
from rosecourse.measure import kernel_classes as classes
from rosecourse.measure.kernel_classes import Spent, spent_by_class
from rosecourse.measure.replayed_step import replayed_step
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.records.steps import steps_of


def window(*kernels):
    """A window of (name, kind, start, duration)."""
    made = tuple(Kernel(*kernel) for kernel in kernels)
    return Timeline((Range(STEP, 0.0, 1000.0),), made, "a GPU", 60.0)


def layer(at, longer=0.0):
    """Attention and a product: 10 µs and more, of which nothing runs for 1."""
    return [("attend", "attention", at, 5.0 + longer), ("linear", "matrix", at + 5 + longer, 4.0)]


WINDOW = window(
    ("linear", "matrix", 0, 4),  # of a layer that was cut off
    *layer(5, longer=2),
    ("attend", "attention", 17, 5),
    ("head_kernel", "matrix", 23, 20),
    ("elementwise_kernel", "other", 43, 2),
    ("Memcpy DtoH", "copy", 48, 1),
    ("embed", "other", 60, 3),
    ("linear", "matrix", 63, 2),
    *layer(66),
    ("attend", "attention", 76, 5),
)


def test_a_step_begins_with_its_first_kernel_and_has_all_layers():
    step = replayed_step(WINDOW, 4)
    assert [kernel.name for kernel in step.kernels] == [
        *("embed", "linear", "attend", "linear", "attend", "linear", "attend", "linear"),
        *("attend", "head_kernel", "elementwise_kernel", "Memcpy DtoH"),
    ]
    assert [kernel.start_us for kernel in step.kernels] == [0, 3, 6, 13, 18, 23, 28, 33, 38, 44, 64, 69]
    assert (step.step_us, step.plain_us) == (81, 60)  # 12 of one layer, 10 of the other, and 10 of one like it


def test_times_of_a_step_add_up_and_a_copy_of_the_logits_is_no_sum_of_a_layer():
    assert spent_by_class(replayed_step(WINDOW, 4)) == {
        classes.HEAD: Spent(1, 20.0),
        classes.PRODUCTS: Spent(4, 14.0),
        classes.ATTENTION: Spent(4, 22.0),
        classes.REST: Spent(1, 3.0),
        classes.COPIES: Spent(2, 3.0),
        classes.GAPS: Spent(0, 19.0),
    }


@pytest.mark.parametrize(
    ("workload", "kernels"),
    [(workload, {"069": 104, "070": 66, "071": 64}) for workload in "ACF"]
    + [("B", {"070": 66, "071": 64})],  # the window of 069 shows no border of two steps
)
def test_recorded_steps_have_all_their_kernels(workload, kernels):
    timelines = steps_of(workload, first="068").timelines
    steps = {number: replayed_step(timelines[number]["inside"], 12) for number in kernels}
    assert {number: len(step.kernels) for number, step in steps.items()} == kernels
    for step in steps.values():
        spent = spent_by_class(step)
        assert sum(one.us for one in spent.values()) == pytest.approx(step.step_us, abs=0.5)
        assert step.step_us > step.plain_us  # a profiler makes no step shorter
        assert spent[classes.ATTENTION].kernels == 12


@pytest.mark.parametrize(
    ("timeline", "layers", "message"),
    [
        (WINDOW, 0, "layers is 0: give 1 or more"),
        (window(*layer(0), *layer(10)), 4, "no border of two steps in this window"),
        (window(), 4, "no border of two steps in this window"),
        (window(*WINDOW.kernels[3:10]), 4, "no whole layer in this window"),
    ],
)
def test_windows_that_do_not_show_enough_are_refused(timeline, layers, message):
    with pytest.raises(ConfigError, match=message):
        replayed_step(timeline, layers)
