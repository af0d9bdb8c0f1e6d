"""Kernels of a recorded step by class: each counts once, and what is left of the step are the gaps."""

import pytest

from rosecourse.measure import kernel_classes as classes
from rosecourse.measure.kernel_classes import Spent, class_of, own_us, spent_by_class
from rosecourse.measure.replayed_step import replayed_step
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.records.steps import steps_of


@pytest.mark.parametrize(
    ("kind", "name", "wanted"),
    [
        ("attention", "_attend_and_append_kernel", classes.ATTENTION),
        ("append", "_kv_append_by_table_kernel", classes.APPEND),
        ("matrix", "splitKreduce_kernel", classes.PRODUCTS),
        ("matrix", "linear_kernel", classes.PRODUCTS),
        ("copy", "Memcpy DtoD", classes.COPIES),
        ("other", "memcpy128", classes.COPIES),
        ("other", "vectorized_layer_norm_kernel", classes.NORMS),
        ("other", "_add_norm_kernel", classes.NORMS),
        ("other", "vectorized_elementwise_kernel", classes.ELEMENTWISE),
        ("other", "_choose_kernel", classes.REST),
        ("other", "choose_of_tiles_kernel", classes.REST),
        ("other", "embed_kernel", classes.REST),
        ("other", "linear_kernel", classes.PRODUCTS),
        ("other", "head_kernel", classes.HEAD),
        ("other", "indexSelectSmallIndex", classes.REST),
    ],
)
def test_a_kernel_has_the_class_of_what_it_does(kind, name, wanted):
    assert class_of(Kernel(name, kind, 0.0, 1.0)) == wanted


def step_of(*kernels):
    """A step of 200 µs: the kernels one after the other, with a microsecond after each."""
    start, placed = 0.0, []
    for kind, name, us in kernels:
        placed.append(Kernel(name, kind, start, us))
        start += us + 1.0
    return Timeline((Range(STEP, 0.0, 200.0),), tuple(placed), "a GPU", 100.0)


def test_the_longest_product_is_the_one_with_the_vocabulary():
    kernels = [("matrix", "gemm", 4.0), ("matrix", "gemm", 30.0), ("matrix", "gemm", 5.0), ("other", "_choose", 2.0)]
    assert spent_by_class(step_of(*kernels)) == {
        classes.HEAD: Spent(1, 30.0),
        classes.PRODUCTS: Spent(2, 9.0),
        classes.REST: Spent(1, 2.0),
        classes.GAPS: Spent(0, 159.0),  # of the 200 us that the step takes with the profiler
    }


@pytest.mark.parametrize(("layers", "wanted"), [(1, classes.ELEMENTWISE), (2, classes.COPIES)])
def test_what_not_every_layer_has_is_a_copy_of_the_logits(layers, wanted):
    kernels = [("attention", "attend", 5.0)] * layers + [("other", "elementwise_kernel", 3.0)]
    assert spent_by_class(step_of(*kernels)) == {
        classes.ATTENTION: Spent(layers, 5.0 * layers),
        wanted: Spent(1, 3.0),
        classes.GAPS: Spent(0, 197.0 - 5.0 * layers),
    }


@pytest.mark.parametrize("number", ["066", "067"])
def test_nothing_of_a_recorded_step_is_lost(number):
    timeline = steps_of("A", first="066").timelines[number]["inside"]
    step = timeline if number == "066" else replayed_step(timeline, 12)
    spent = spent_by_class(step)
    assert spent[classes.HEAD].kernels == 1 < spent[classes.APPEND].kernels
    assert sum(one.kernels for one in spent.values()) == len(step.kernels)
    assert sum(one.us for one in spent.values()) == pytest.approx(step.step_us, rel=0.01)  # the last one may end later


def overlapping(*kernels):
    """A step of kernels with a start and an end."""
    placed = (Kernel(name, kind, start, end - start) for kind, name, start, end in kernels)
    return Timeline((Range(STEP, 0.0, 200.0),), tuple(placed), "a GPU", 100.0)


def test_a_kernel_that_waits_for_the_one_before_it_counts_from_its_end():
    kernels = [("other", "a", 0, 10), ("other", "b", 2, 14), ("other", "c", 3, 12), ("other", "d", 20, 25)]
    assert own_us(overlapping(*kernels)) == [10, 4, 0, 5]


def test_kernels_of_a_recorded_step_add_up_to_the_time_of_the_device():
    timeline = steps_of("A", first="068").timelines["071"]["inside"]
    beyond = timeline.kernels[-1].start_us + timeline.kernels[-1].duration_us - timeline.step_us
    assert sum(own_us(timeline)) == pytest.approx(timeline.busy_us + beyond)
    assert sum(kernel.duration_us for kernel in timeline.kernels) > 1.2 * timeline.busy_us
