"""Kernels of a recorded step by class and by place: each counts once, and what is left of the step are the gaps."""

import pytest

from rosecourse.measure import kernels as classes
from rosecourse.measure.kernels import classes_of, spent_by_class, spent_by_place
from rosecourse.measure.timeline import replayed_step
from rosecourse.records.steps import recorded_steps
from tests.support.timelines import timeline_of


def step_of(*kernels):
    """A step of 200 µs: the kernels one after the other, with a microsecond after each."""
    start, placed = 0.0, []
    for kind, name, us in kernels:
        placed.append((name, kind, start, us))
        start += us + 1.0
    return timeline_of(placed)


@pytest.mark.parametrize(
    ("kind", "name", "wanted"),
    [
        ("attention", "_attend_and_append_kernel", classes.ATTENTION),
        ("append", "_kv_append_by_table_kernel", classes.APPEND),
        ("copy", "Memcpy DtoD", classes.COPIES),
        ("other", "memcpy128", classes.COPIES),
        ("other", "vectorized_layer_norm_kernel", classes.NORMS),
        ("other", "_add_norm_kernel", classes.NORMS),
        ("other", "vectorized_elementwise_kernel", classes.ELEMENTWISE),
        ("other", "_choose_kernel", classes.REST),
        ("other", "indexSelectSmallIndex", classes.REST),
    ],
)
def test_a_kernel_has_the_class_of_what_it_does(kind, name, wanted):
    assert classes_of(step_of((kind, name, 1.0)).kernels).tolist() == [wanted]


def test_the_longest_product_is_the_one_with_the_vocabulary():
    kernels = [("matrix", "gemm", 4.0), ("matrix", "gemm", 30.0), ("matrix", "gemm", 5.0), ("other", "_choose", 2.0)]
    assert list(spent_by_class(step_of(*kernels)).itertuples(name=None)) == [
        (classes.HEAD, 1, 30.0),
        (classes.PRODUCTS, 2, 9.0),
        (classes.REST, 1, 2.0),
        (classes.GAPS, 0, 159.0),  # of the 200 us that the step takes with the profiler
    ]


@pytest.mark.parametrize(("layers", "wanted"), [(1, classes.ELEMENTWISE), (2, classes.COPIES)])
def test_what_not_every_layer_has_is_a_copy_of_the_logits(layers, wanted):
    kernels = [("attention", "attend", 5.0)] * layers + [("other", "elementwise_kernel", 3.0)]
    spent = spent_by_class(step_of(*kernels))
    assert spent.index.tolist() == [classes.ATTENTION, wanted, classes.GAPS]
    assert spent.us.tolist() == [5.0 * layers, 3.0, 197.0 - 5.0 * layers]


@pytest.mark.parametrize("number", ["066", "067", "071"])
def test_nothing_of_a_recorded_step_is_lost(number):
    timeline = recorded_steps("A").timeline(number)
    step = timeline if number == "066" else replayed_step(timeline, 12)
    spent = spent_by_class(step)
    assert spent.kernels[classes.HEAD] == 1
    assert spent.kernels.sum() == len(step.kernels)
    assert spent.us.sum() == pytest.approx(step.step_us, rel=0.01)  # the last one may end later


def test_products_are_told_by_their_order_after_attention():
    layer = [("attention", "attend", 5.0), ("matrix", "gemm", 1.0), ("matrix", "splitKreduce_kernel", 0.5)]
    layer += [("other", "layer_norm", 0.25), ("matrix", "gemm", 2.0), ("matrix", "gemm", 3.0)]
    qkv, head = [("other", "layer_norm", 0.25), ("matrix", "gemm", 4.0)], [("matrix", "gemm", 9.0)]
    cut_off = [("matrix", "gemm", 7.0), ("other", "elementwise", 1.0)]
    found = spent_by_place(step_of(*cut_off, *layer, *qkv, *layer, *head, ("other", "choose", 1.0)))
    assert list(found.itertuples(name=None)) == [
        (classes.QKV, 2, 4.25),
        (classes.ATTEND, 1, 5.0),
        (classes.PROJECT, 2, 1.5),
        (classes.WIDEN, 2, 2.25),
        (classes.NARROW, 1, 3.0),
        (classes.VOCABULARY, 1, 9.0),
    ]


@pytest.mark.parametrize("workload", ["A", "C", "F"])
def test_a_recorded_layer_has_every_place(workload):
    found = spent_by_place(recorded_steps(workload).timeline("070"))
    assert set(classes.OF_A_LAYER) <= set(found.index)
    assert (found.us > 0).all()
