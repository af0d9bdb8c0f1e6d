"""Kernels of a recorded step by class: each counts once, and what is left of the step are the gaps."""

import pytest

from rosecourse.measure import kernel_classes as classes
from rosecourse.measure.kernel_classes import Spent, class_of, own_us, spent_by_class, whole_step
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


def step_of(*kernels, plain_us=100.0):
    start, placed = 0.0, []
    for kind, name, us in kernels:
        placed.append(Kernel(name, kind, start, us))
        start += us + 1.0
    return Timeline((Range(STEP, 0.0, 200.0),), tuple(placed), "a GPU", plain_us)


def test_the_longest_product_is_the_one_with_the_vocabulary():
    kernels = [("matrix", "gemm", 4.0), ("matrix", "gemm", 30.0), ("matrix", "gemm", 5.0), ("other", "_choose", 2.0)]
    assert spent_by_class(step_of(*kernels)) == {
        classes.HEAD: Spent(1, 30.0),
        classes.PRODUCTS: Spent(2, 9.0),
        classes.REST: Spent(1, 2.0),
        classes.GAPS: Spent(4, 59.0),  # of the 100 us that the step takes without the profiler
    }


def test_a_step_without_products_or_gaps():
    assert spent_by_class(step_of(("copy", "Memcpy DtoH", 3.0), plain_us=2.0)) == {
        classes.COPIES: Spent(1, 3.0),
        classes.GAPS: Spent(1, 0.0),  # never less than none
    }


def test_nothing_of_a_recorded_step_is_lost():
    recorded = steps_of("A", first="066")
    timeline = recorded.timelines["067"]["inside"]
    spent = spent_by_class(timeline)
    assert spent[classes.HEAD].kernels == 1 < spent[classes.APPEND].kernels
    kernels = {name: one for name, one in spent.items() if name != classes.GAPS}
    assert sum(one.kernels for one in kernels.values()) == spent[classes.GAPS].kernels == len(timeline.kernels)
    assert sum(one.us for one in spent.values()) == pytest.approx(
        timeline.plain_us, rel=0.01
    )  # the last one ends later


def overlapping(*kernels, plain_us=100.0):
    """A step of kernels with a start and an end."""
    placed = (Kernel(name, kind, start, end - start) for kind, name, start, end in kernels)
    return Timeline((Range(STEP, 0.0, 200.0),), tuple(placed), "a GPU", plain_us)


def test_a_kernel_that_waits_for_the_one_before_it_counts_from_its_end():
    kernels = [("other", "a", 0, 10), ("other", "b", 2, 14), ("other", "c", 3, 12), ("other", "d", 20, 25)]
    assert own_us(overlapping(*kernels)) == [10, 4, 0, 5]


def test_what_the_window_has_cut_off_is_added_for_all_layers():
    """Two products in a layer, one of the three layers is cut off, and one copy of the logits in a step."""
    first = [("other", "linear_kernel", 0, 10), ("attention", "attend", 4, 30), ("other", "linear_kernel", 30, 36)]
    second = [("other", "linear_kernel", 36, 40), ("attention", "attend", 40, 50), ("other", "linear_kernel", 50, 60)]
    ends = [("other", "head_kernel", 61, 66), ("other", "elementwise", 66, 67)]
    spent = whole_step(overlapping(*first, *second, *ends, plain_us=200.0), layers=3)
    assert spent == {
        classes.HEAD: Spent(1, 5.0),
        classes.PRODUCTS: Spent(6, 45.0),  # of 7.5 us
        classes.ATTENTION: Spent(3, 45.0),
        classes.ELEMENTWISE: Spent(1, 1.0),
        classes.GAPS: Spent(0, 104.0),
    }


def test_a_layer_that_the_window_shows_twice_in_part_is_one_layer():
    layer = [("attention", "attend"), ("other", "linear_kernel"), ("other", "linear_kernel")]
    kernels = [layer[2], *layer, *layer, layer[0], layer[1], ("other", "head_kernel"), ("other", "linear_kernel")]
    placed = [(kind, name, start, start + 1) for start, (kind, name) in enumerate(kernels)]
    spent = whole_step(overlapping(*placed), layers=3)
    assert (spent[classes.PRODUCTS], spent[classes.ATTENTION]) == (Spent(6, 6.0), Spent(3, 3.0))


@pytest.mark.parametrize(
    "kernels", [[("other", "head_kernel", 0, 5)], [("attention", "a", 0, 1), ("other", "head_kernel", 1, 2)]]
)
def test_a_step_without_a_whole_layer_says_nothing_of_layers(kernels):
    with pytest.raises(ValueError, match="no whole layer"):
        whole_step(overlapping(*kernels), layers=2)


def test_kernels_of_a_recorded_step_add_up_to_the_time_of_the_device():
    timeline = steps_of("A", first="069").timelines["071"]["inside"]
    beyond = timeline.kernels[-1].start_us + timeline.kernels[-1].duration_us - timeline.step_us
    assert sum(own_us(timeline)) == pytest.approx(timeline.busy_us + beyond)
    assert sum(kernel.duration_us for kernel in timeline.kernels) > 1.2 * timeline.busy_us
