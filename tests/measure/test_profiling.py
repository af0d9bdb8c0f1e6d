"""What a profiler saw of a decode step becomes the events of a timeline: which step, its ranges and its kernels."""

import pandas as pd
import pytest

from rosecourse import RosecourseError
from rosecourse.measure import profiling
from rosecourse.measure.profiling import events_of
from rosecourse.measure.timeline import HOST, STEP, Timeline
from tests.support.timelines import APPEND, COPY, FORWARD, H2D, PLACE, PLAN, RUN, TABLES


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
    ("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", True, 30, 40, 4),
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


def test_without_a_launch_the_appends_range_on_the_device_tells():
    other = [one for one in STEP_EVENTS if not one[0].startswith("cu")]
    kinds = events_of(seen(*other)).kind
    assert kinds[kinds != HOST].tolist() == ["copy", "attention", "matrix", "append", "append"]


def test_the_kernels_of_a_graph_have_one_launch_and_their_names_say_what_they_are():
    """There are no ranges inside a graph, and its launch is inside no append: only the append's own kernel is told."""
    found = Timeline(events_of(seen(*GRAPH_EVENTS)), "NVIDIA H200", 83.0)
    assert list(zip(found.kernels.name, found.kernels.kind, strict=True)) == [
        ("index_put_kernel", "other"),
        ("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", "matrix"),
        ("_kv_append_by_table_kernel", "append"),
        ("_paged_attn_decode_kernel", "attention"),
        ("Memcpy DtoD", "copy"),
    ]
    assert [found.part_us(part) for part in ("place", "plan", "runner", "rest", "forward")] == [8, 8, 5, 79, 0]
    assert found.busy_us == pytest.approx(31)


def test_there_is_one_step_in_what_a_profiler_saw():
    for events, number in (((), 0), (STEP_EVENTS * 2, 2)):
        with pytest.raises(RosecourseError, match=f"the profiler saw {number} steps instead of 1: record once more"):
            events_of(seen(*events))


@pytest.mark.parametrize(
    ("name", "short", "kind"),
    [
        ("_kv_append_full_batch_kernel", "_kv_append_full_batch_kernel", "append"),
        ("void cutlass::Kernel2<cutlass_80_wmma>(cutlass_80::Params)", "Kernel2", "matrix"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, __half, 128>(Params)",
            "gemvx::kernel",
            "matrix",
        ),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(cublasSplitKParams)", "splitKreduce_kernel", "matrix"),
        ("void at::native::(anonymous namespace)::indexSelect<float, 2>(int)", "indexSelect", "other"),
        ("linear_kernel", "linear_kernel", "matrix"),
        ("choose_of_tiles_kernel", "choose_of_tiles_kernel", "other"),
        ("Memset (Device)", "Memset", "copy"),
        ("x" * 99, "x" * 40, "other"),
        ("", "?", "other"),
    ],
)
def test_names_are_shortened_and_told_apart(name, short, kind):
    assert profiling.short_name(name) == short
    assert profiling.kind_of(name) == kind
