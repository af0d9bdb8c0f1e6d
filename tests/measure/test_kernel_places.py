"""Places of a layer, told by the order of kernels: of the library's products, and of our own."""

import pytest

from rosecourse.measure import kernel_places as places
from rosecourse.measure.kernel_places import Placed, spent_by_place
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.records.steps import steps_of


def step_of(*kernels):
    start, placed = 0.0, []
    for kind, name, us in kernels:
        placed.append(Kernel(name, kind, start, us))
        start += us
    return Timeline((Range(STEP, 0.0, 200.0),), tuple(placed), "a GPU", 100.0)


def layer(us, *, names="linear_kernel"):
    """The five kernels of a layer, from attention to the next attention, each longer than the one before it."""
    return [("attention", "_attend", us), *(("matrix", names, us + n) for n in range(1, 5))]


END = [
    *layer(1.0)[:4],
    ("matrix", "head_kernel", 30.0),
    ("other", "choose_of_tiles_kernel", 2.0),
    ("other", "embed_kernel", 2.0),
]


def test_five_kernels_a_layer():
    """A product that a window begins with is of no known place, and after the head comes the first layer again."""
    step = step_of(("matrix", "linear_kernel", 9.0), *layer(1.0), *layer(3.0), *END, ("matrix", "linear_kernel", 7.0))
    assert spent_by_place(step) == {
        places.QKV: Placed(1, 7.0),  # 5, 7 and, after the embedding, 7
        places.ATTENTION: Placed(1, 1.0),
        places.PROJECT: Placed(1, 2.0),
        places.WIDEN: Placed(1, 3.0),
        places.NARROW: Placed(1, 4.0),
        places.VOCABULARY: Placed(1, 30.0),
    }
    assert list(spent_by_place(step)) == list(places.PLACES)


def test_norms_count_with_the_product_after_them_and_reductions_with_the_one_before():
    step = step_of(
        *[("other", "_add_norm_kernel", 0.5), ("matrix", "nvjet", 4.0)],  # before the first attention: unknown
        *[("attention", "_attend", 17.0), ("matrix", "nvjet", 4.0), ("other", "_add_norm_kernel", 2.0)],
        *[("matrix", "nvjet", 5.0), ("matrix", "nvjet", 5.5), ("matrix", "splitKreduce_kernel", 2.5)],
        *[("other", "_add_norm_kernel", 1.5), ("matrix", "nvjet", 6.0), ("attention", "_attend", 18.0)],
        ("matrix", "nvjet", 23.0),
    )
    assert spent_by_place(step) == {
        places.QKV: Placed(2, 7.5),
        places.ATTENTION: Placed(1, 17.5),
        places.PROJECT: Placed(1, 4.0),
        places.WIDEN: Placed(2, 7.0),
        places.NARROW: Placed(2, 8.0),
        places.VOCABULARY: Placed(1, 23.0),
    }


def test_a_step_without_products():
    assert spent_by_place(step_of(("copy", "Memcpy DtoH", 3.0))) == {}
    assert spent_by_place(step_of(("attention", "_attend", 3.0))) == {places.ATTENTION: Placed(1, 3.0)}


@pytest.mark.parametrize("workload", ["A", "C", "F"])
def test_the_recorded_steps_of_069_have_all_places(workload):
    timeline = steps_of(workload, first="067").timelines["069"]["inside"]
    found = spent_by_place(timeline)
    assert {place: round(one.kernels) for place, one in found.items()} == {
        places.QKV: 2,
        places.ATTENTION: 1,
        places.PROJECT: 1,
        places.WIDEN: 2,
        places.NARROW: 2,
        places.VOCABULARY: 2,
    }
    assert 12 * sum(found[place].us for place in places.OF_A_LAYER) < timeline.plain_us
