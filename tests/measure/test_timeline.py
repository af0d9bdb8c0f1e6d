"""From what a profiler saw of a decode step to a timeline, and from that to classes, places and whole steps."""

import pandas as pd
import pytest

from rosecourse import ConfigError, RosecourseError
from rosecourse.measure import kernels as classes
from rosecourse.measure import profiling
from rosecourse.measure.kernels import classes_of, spent_by_class, spent_by_place
from rosecourse.measure.profiling import events_of
from rosecourse.measure.timeline import HOST, STEP, Timeline, replayed_step
from rosecourse.records.steps import recorded_steps
from tests.support.timelines import APPEND, COPY, FORWARD, H2D, PLACE, PLAN, RUN, TABLES, timeline_of

# -- what a profiler saw --------------------------------------------------------------------------------------------


def seen(*events):
    """A profiler's events: name, whether on the device, start, end and perhaps an id, 1 ms after it began."""
    rows = [(name, on, 1000 + start, 1000 + end, *(more or (0,))) for name, on, start, end, *more in events]
    return pd.DataFrame(rows, columns=["name", "on_device", "start_us", "end_us", "id"])


STEP_EVENTS = (  # tables 10 to 20, forward 20 to 50, append 50 to 70 of 100; an attention, a product, two copies
    (APPEND, True, 60, 92),  # what the device repeats is no kernel
    (STEP, True, 1, 99),
    (STEP, False, 0, 100),
    (TABLES, False, 10, 20),
    (H2D, False, 12, 14),
    ("Memcpy HtoD (Pinned -> Device)", True, 15, 16, 7),
    ("aten::copy_", False, 12, 13),
    (FORWARD, False, 20, 50),
    ("cudaLaunchKernel", False, 49, 49.5, 8),
    (APPEND, False, 50, 70),
    ("cuLaunchKernelEx", False, 60, 61, 9),
    ("_paged_attn_decode_kernel", True, 30, 40, 5),
    ("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", True, 35, 50, 6),
    (COPY, True, 61, 71, 8),  # of the forward, late
    (COPY, True, 80, 90, 9),  # of the append, later than its range on the host
)
GRAPH_EVENTS = (  # the copies of a fork 5 to 12, plan 12 to 20, and a run 20 to 25 that launches all kernels
    (STEP, False, 0, 100),
    (PLACE, False, 4, 12),
    ("cudaLaunchKernel", False, 6, 7, 3),
    ("void at::native::index_put_kernel<int>(int)", True, 9, 10, 3),
    (PLAN, False, 12, 20),
    (RUN, False, 20, 25),
    (RUN, True, 30, 80),
    ("cudaGraphLaunch", False, 21, 24, 4),
    ("_kv_append_by_table_kernel", True, 41, 43, 4),
    ("_paged_attn_decode_kernel", True, 43, 60, 4),
    ("Memcpy DtoD (Device -> Device)", True, 79, 80, 4),
)


def test_kernels_and_ranges_are_those_of_the_step():
    events = events_of(seen(("late", True, 110, 111), (FORWARD, False, -90, -80), *reversed(STEP_EVENTS)))
    assert list(events.itertuples(index=False, name=None)) == [
        (STEP, HOST, 0, 100),
        (TABLES, HOST, 10, 10),
        (H2D, HOST, 12, 2),
        ("Memcpy HtoD", "copy", 15, 1),
        (FORWARD, HOST, 20, 30),
        ("_paged_attn_decode_kernel", "attention", 30, 10),
        ("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", "matrix", 35, 15),
        (APPEND, HOST, 50, 20),
        ("unrolled_elementwise_kernel", "other", 61, 10),
        ("unrolled_elementwise_kernel", "append", 80, 10),
    ]
    kinds = events_of(seen(*[one for one in STEP_EVENTS if not one[0].startswith("cu")])).kind  # without a launch
    assert kinds[kinds != HOST].tolist() == ["copy", "attention", "matrix", "append", "append"]


def test_kernels_of_a_graph_are_told_by_their_names():
    """There are no ranges inside a graph, and its launch is inside no append: only the append's own kernel is told."""
    found = Timeline(events_of(seen(*GRAPH_EVENTS)), "NVIDIA H200", 83.0)
    assert found.kernels.kind.tolist() == ["other", "append", "attention", "copy"]
    assert [found.part_us(part) for part in ("place", "plan", "runner", "rest", "forward")] == [8, 8, 5, 79, 0]


@pytest.mark.parametrize(("events", "number"), [((), 0), (STEP_EVENTS * 2, 2)])
def test_several_steps_of_a_profiler_are_refused(events, number):
    with pytest.raises(RosecourseError, match=f"the profiler saw {number} steps instead of 1: record once more"):
        events_of(seen(*events))


@pytest.mark.parametrize(
    ("name", "short", "kind"),
    [
        ("_kv_append_full_batch_kernel", "_kv_append_full_batch_kernel", "append"),
        ("void cutlass::Kernel2<cutlass_80_wmma>(cutlass_80::Params)", "Kernel2", "matrix"),
        ("std::enable_if<!(false), void>::type gemvx::kernel<int, __half, 128>(Params)", "gemvx::kernel", "matrix"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(cublasSplitKParams)", "splitKreduce_kernel", "matrix"),
        ("void at::native::(anonymous namespace)::indexSelect<float, 2>(int)", "indexSelect", "other"),
        ("linear_kernel", "linear_kernel", "matrix"),
        ("choose_of_tiles_kernel", "choose_of_tiles_kernel", "other"),
        ("Memset (Device)", "Memset", "copy"),
        ("x" * 99, "x" * 40, "other"),
        ("", "?", "other"),
    ],
)
def test_names_of_kernels_are_shortened_and_told_apart(name, short, kind):
    assert (profiling.short_name(name), profiling.kind_of(name)) == (short, kind)


# -- what the kernels do --------------------------------------------------------------------------------------------


def step_of(*kernels):
    """A step of 200 µs: the kernels one after the other, with a microsecond after each."""
    start, placed = 0.0, []
    for kind, name, us in kernels:
        placed.append((name, kind, start, us))
        start += us + 1.0
    return timeline_of(placed)


def test_a_kernel_that_waits_counts_from_the_end_before_it():
    spans = [("a", 0, 10), ("b", 2, 14), ("c", 3, 12), ("d", 20, 25)]
    found = timeline_of([(name, "other", start, end - start) for name, start, end in spans], 22.0)
    assert found.kernels.own_us.tolist() == [10, 4, 0, 5]
    assert (found.busy_us, found.busy_share) == (16, 16 / 22)  # d ends after the step
    assert timeline_of([]).busy_us == 0


def test_kernels_are_told_by_class():
    """The longest product is the one with the vocabulary; what not every layer has copies the logits."""
    kernels = [("matrix", "gemm", 4.0), ("matrix", "gemm", 30.0), ("attention", "_attend_and_append", 8.0)] * 2
    kernels += [("append", "_kv_append_by_table", 1.0), ("copy", "Memcpy DtoD", 2.0), ("other", "memcpy128", 3.0)]
    kernels += [("other", "vectorized_layer_norm_kernel", 4.0), ("other", "_add_norm_kernel", 5.0)]
    kernels += [("other", "_choose_kernel", 6.0), ("other", "vectorized_elementwise_kernel", 7.0)]
    spent = spent_by_class(step_of(*kernels[1:]))
    assert list(spent.itertuples(name=None)) == [
        (classes.HEAD, 1, 30.0),
        (classes.PRODUCTS, 2, 34.0),
        (classes.ATTENTION, 2, 16.0),
        (classes.APPEND, 1, 1.0),
        (classes.NORMS, 2, 9.0),
        (classes.REST, 1, 6.0),
        (classes.COPIES, 3, 12.0),  # with the copy of the logits
        (classes.GAPS, 0, 92.0),  # of the 200 us that the step takes with the profiler
    ]
    assert classes_of(step_of(*kernels[1:]).kernels).tolist()[-1] == classes.ELEMENTWISE


def test_products_are_told_by_their_order_after_attention():
    layer = [("attention", "attend", 5.0), ("matrix", "gemm", 1.0), ("matrix", "splitKreduce_kernel", 0.5)]
    layer += [("other", "layer_norm", 0.25), ("matrix", "gemm", 2.0), ("matrix", "gemm", 3.0)]
    qkv, head = [("other", "layer_norm", 0.25), ("matrix", "gemm", 4.0)], [("matrix", "gemm", 9.0)]
    cut_off = [("matrix", "gemm", 7.0), ("other", "elementwise", 1.0)]
    found = spent_by_place(step_of(*cut_off, *layer, *qkv, *layer, *head, ("other", "choose", 1.0)))
    counts, times = [2, 1, 2, 2, 1, 1], [4.25, 5.0, 1.5, 2.25, 3.0, 9.0]
    assert list(found.itertuples(name=None)) == list(zip(classes.PLACES, counts, times, strict=True))


# -- whole steps ----------------------------------------------------------------------------------------------------

LAYER = [("attend", "attention", 0, 5), ("gemm", "matrix", 6, 3)]
BORDER = [*LAYER, ("head", "matrix", 10, 20), ("_to_host_kernel", "other", 31, 1), ("embed", "other", 33, 2)]


def window(*groups):
    """Kernels one group after the other, 40 µs each."""
    return timeline_of([(n, kind, 40 * at + start, us) for at, one in enumerate(groups) for n, kind, start, us in one])


def test_a_step_is_put_together_from_a_window_of_replays():
    """The window has the end of a step, its border with the next one, and two layers of that."""
    seen = window(LAYER, BORDER, LAYER, LAYER, LAYER[:1])
    step = replayed_step(seen, layers=5)
    assert step.kernels.name.tolist() == ["embed", *["attend", "gemm"] * 5, "head", "_to_host_kernel"]
    assert step.kernels.start_us.tolist()[:3] == [0, 7, 13]
    assert step.step_us == 5 * 40  # from one embedding to the next
    for groups, told in (([LAYER, LAYER], "no border of two steps"), ([BORDER, LAYER], "no whole layer")):
        with pytest.raises(ConfigError, match=told):
            replayed_step(window(*groups), layers=2)


@pytest.mark.parametrize("number", ["066", "067", "069", "071"])
def test_nothing_of_a_recorded_step_is_lost(number):
    timeline = recorded_steps("A").timeline(number)
    step = timeline if number == "066" else replayed_step(timeline, 12)
    assert (step.kernels.kind == "attention").sum() == 12
    assert 0 < step.busy_us <= step.step_us
    spent = spent_by_class(step)
    assert spent.kernels[classes.HEAD] == 1
    assert spent.kernels.sum() == len(step.kernels)
    assert spent.us.sum() == pytest.approx(step.step_us, rel=0.01)  # the last one may end later
    assert number == "066" or {*classes.PLACES[:-1]} <= {*spent_by_place(timeline).index}
