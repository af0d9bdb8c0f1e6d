"""What a profiler saw of a decode step becomes a timeline: which step, its ranges and its kernels."""

import json

import pytest

from rosecourse import ConfigError, EngineConfig, InferenceEngine, RosecourseError, SamplingParams, lesson
from rosecourse.measure import profiling
from rosecourse.measure.profiling import Event, timeline_of
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from tests.support.timelines import APPEND, COPY, FORWARD, H2D, PLACE, PLAN, RUN, TABLES


def step_events(start=1000.0, length=100.0):
    """A step: tables 10 to 20, forward 20 to 50, append 50 to 70 of 100; an attention, a product, two copies."""
    unit = length / 100

    def event(name, first, last, on_device=False, number=0):
        return Event(name, on_device, start + first * unit, start + last * unit, number)

    return [
        event("roseinfer.kv.append_token", 60, 92, True),  # what the device repeats is no kernel
        event(STEP, 1, 99, True),
        event(STEP, 0, 100),
        event(TABLES, 10, 20),
        event(H2D, 12, 14),
        event("Memcpy HtoD (Pinned -> Device)", 15, 16, True, 7),
        event("aten::copy_", 12, 13),
        event(FORWARD, 20, 50),
        event("cudaLaunchKernel", 49, 49.5, number=8),
        event(APPEND, 50, 70),
        event("cuLaunchKernelEx", 60, 61, number=9),
        event("_paged_attn_decode_kernel", 30, 40, True, 5),
        event("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", 35, 50, True, 6),
        event(COPY, 61, 71, True, 8),  # of the forward, late
        event(COPY, 80, 90, True, 9),  # of the append, later than its range on the host
    ]


def test_kernels_and_ranges_are_those_of_the_step():
    events = [*step_events(), Event("late", True, 1100.0, 1101.0), Event(FORWARD, False, 900.0, 910.0)]
    found = timeline_of(reversed(events), 70, "NVIDIA H200", 83.04)
    assert found.ranges == (
        Range(STEP, 0.0, 100.0),
        Range(TABLES, 10.0, 10.0),
        Range(H2D, 12.0, 2.0),
        Range(FORWARD, 20.0, 30.0),
        Range(APPEND, 50.0, 20.0),
    )
    assert found.kernels == (
        Kernel("Memcpy HtoD", "copy", 15.0, 1.0),
        Kernel("_paged_attn_decode_kernel", "attention", 30.0, 10.0),
        Kernel("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", "matrix", 35.0, 15.0),
        Kernel("unrolled_elementwise_kernel", "other", 61.0, 10.0),
        Kernel("unrolled_elementwise_kernel", "append", 80.0, 10.0),
    )
    assert (found.device, found.plain_us, found.step_us) == ("NVIDIA H200", 83.0, 100.0)
    assert (found.step_kind, found.context) == ("inside", 70)
    assert found.parts == ["block_tables", "forward", "kv_append"]
    assert [found.part_us(part) for part in (*found.parts, "rest", "plan")] == [10, 30, 20, 40, 0]
    assert found.busy_us == pytest.approx(41)  # 30 to 50 counts once
    assert found.busy_share == pytest.approx(0.41)


def test_without_launches_the_range_on_the_device_says_what_the_append_did():
    events = [event for event in step_events() if not event.name.startswith("cu")]
    kinds = [kernel.kind for kernel in timeline_of(events, 1, "x", 1.0).kernels]
    assert kinds == ["copy", "attention", "matrix", "append", "append"]


def graph_events(launch="cudaGraphLaunch"):
    """A step of a graph: the copies of a fork 5 to 12, plan 12 to 20, and a run 20 to 25 that launches all kernels."""
    return [
        Event(STEP, False, 0.0, 100.0),
        Event(STEP, True, 8.0, 95.0),
        Event(PLACE, False, 4.0, 12.0),
        Event("cudaLaunchKernel", False, 6.0, 7.0, 3),
        Event("void at::native::index_put_kernel<int>(int)", True, 9.0, 10.0, 3),
        Event(PLAN, False, 12.0, 20.0),
        Event(RUN, False, 20.0, 25.0),
        Event(RUN, True, 30.0, 80.0),  # what the device repeats is no kernel
        Event(launch, False, 21.0, 24.0, 4),
        Event("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", True, 30.0, 40.0, 4),
        Event("_kv_append_by_table_kernel", True, 41.0, 43.0, 4),
        Event("_paged_attn_decode_kernel", True, 43.0, 60.0, 4),
        Event("Memcpy DtoD (Device -> Device)", True, 79.0, 80.0, 4),
        Event("cudaLaunchKernel", False, 26.0, 27.0, 5),
        Event(COPY, True, 81.0, 82.0, 5),
    ]


@pytest.mark.parametrize("launch", ["cudaGraphLaunch", "cuGraphLaunch"])
def test_the_kernels_of_a_graph_have_one_launch_and_their_names_say_what_they_are(launch):
    """There are no ranges inside a graph, and its launch is inside no append: only the append's own kernel is told."""
    found = timeline_of(graph_events(launch), 70, "NVIDIA H200", 83.0)
    assert [(kernel.name, kernel.kind) for kernel in found.kernels] == [
        ("index_put_kernel", "other"),
        ("nvjet_hsh_64x8_64x16_1x2_h_bz_TNT", "matrix"),
        ("_kv_append_by_table_kernel", "append"),
        ("_paged_attn_decode_kernel", "attention"),
        ("Memcpy DtoD", "copy"),
        ("unrolled_elementwise_kernel", "other"),
    ]
    assert found.parts == ["place", "plan", "runner"]
    assert [found.part_us(part) for part in (*found.parts, "rest", "forward")] == [8, 8, 5, 79, 0]
    assert found.busy_us == pytest.approx(32)
    assert Timeline.of(json.loads(json.dumps(found.document()))) == found


def test_there_is_one_step_in_what_a_profiler_saw():
    found = timeline_of(step_events(1000.0, 110.0), 192, "CPU", 1.0, "boundary")
    assert (found.step_us, found.context, found.step_kind) == (110, 192, "boundary")
    for events, seen in (([], 0), ([*step_events(), *step_events(1000.0)], 2)):
        with pytest.raises(RosecourseError, match=f"the profiler saw {seen} steps instead of 1: record once more"):
            timeline_of(events, 10, "CPU", 1.0)


@pytest.mark.parametrize(
    ("name", "short", "kind"),
    [
        ("_kv_append_full_batch_kernel", "_kv_append_full_batch_kernel", "append"),
        ("_kv_append_by_table_kernel", "_kv_append_by_table_kernel", "append"),
        ("void cutlass::Kernel2<cutlass_80_wmma>(cutlass_80::Params)", "Kernel2", "matrix"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, __half, 128>(Params)",
            "gemvx::kernel",
            "matrix",
        ),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(cublasSplitKParams)", "splitKreduce_kernel", "matrix"),
        ("void at::native::(anonymous namespace)::indexSelect<float, 2>(int)", "indexSelect", "other"),
        ("linear_kernel", "linear_kernel", "matrix"),
        ("head_kernel", "head_kernel", "matrix"),
        ("choose_of_tiles_kernel", "choose_of_tiles_kernel", "other"),
        ("embed_kernel", "embed_kernel", "other"),
        ("Memset (Device)", "Memset", "copy"),
        ("x" * 99, "x" * 40, "other"),
        ("", "?", "other"),
    ],
)
def test_names_are_shortened_and_told_apart(name, short, kind):
    assert profiling.short_name(name) == short
    assert profiling.kind_of(name) == kind


# -- taken --------------------------------------------------------------------------------------------------------


def decoding_of(model, prompts=((1, 2, 3), (1, 2, 3)), room=60, number="best"):
    """An engine with sessions that have been prefilled; they have this many tokens in the end."""
    config = EngineConfig(block_size=8, max_batch_size=2, max_seq_len=room)
    engine = InferenceEngine(model, config, lesson(number).after)
    each = [params_of(room - len(prompt)) for prompt in prompts]
    sessions = [engine.new_session(prompt, params) for prompt, params in zip(prompts, each, strict=True)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return engine, sessions


def params_of(new):
    return SamplingParams(max_new_tokens=new, stop_on_eos=False)


def test_a_timeline_on_a_cpu_has_the_ranges_in_order_inside_the_step(small_model):
    engine, sessions = decoding_of(small_model, number="061")
    found = profiling.take_timeline(engine, sessions)
    assert [one.name for one in found.ranges] == [STEP, TABLES, H2D, FORWARD, APPEND]
    step, tables, h2d, forward, append = found.ranges
    assert step.start_us == 0 < tables.start_us < h2d.start_us
    ends = [one.start_us + one.duration_us for one in (h2d, tables, forward, append, step)]
    assert ends == sorted(ends)
    assert ends[1] <= forward.start_us
    assert ends[2] <= append.start_us
    assert found.step_us > sum(one.duration_us for one in (tables, forward, append)) > 0
    assert (found.kernels, found.device, found.busy_share) == ((), "CPU", 0)
    assert 0 < found.plain_us < 100 * found.step_us
    assert Timeline.of(json.loads(json.dumps(found.document()))) == found


@pytest.mark.parametrize(
    ("number", "ranges", "parts"),
    [
        ("062", [TABLES, H2D, FORWARD, APPEND], ["block_tables", "forward", "kv_append"]),
        ("063", [PLACE, TABLES, H2D, FORWARD], ["place", "block_tables", "forward"]),
        ("064", [PLACE, PLAN, FORWARD], ["place", "plan", "forward"]),
        ("065", [PLACE, PLAN, FORWARD], ["place", "plan", "forward"]),
        ("066", [PLACE, PLAN, RUN], ["place", "plan", "runner"]),
    ],
)
def test_a_timeline_has_the_ranges_of_its_rung(small_model, number, ranges, parts):
    found = profiling.take_timeline(*decoding_of(small_model, number=number))
    assert [one.name for one in found.ranges] == [STEP, *ranges]
    assert found.parts == parts
    known = sum(found.part_us(part) for part in parts)
    assert 0 < known < found.step_us
    assert found.part_us("rest") == pytest.approx(found.step_us - known)


def test_a_step_inside_a_block_neither_begins_a_block_nor_reads_one_for_the_first_time(small_model):
    """24 and 25 begin a block and read it for the first time; 23 to 26 are those that come before."""
    engine, sessions = decoding_of(small_model)
    found = profiling.take_timeline(engine, sessions)
    first = 3 + profiling.WARMUP + profiling.BEFORE_SHOWN
    assert found.context == next(n for n in range(first, 60) if n % 8 > 1)
    assert found.step_kind == "inside"
    assert sessions[0].num_cached_tokens == found.context + 1


@pytest.mark.parametrize("room", [60, 34])
def test_at_a_boundary_every_session_begins_a_block(small_model, room):
    """The first after 20 steps alone and 4 that are not shown."""
    engine, sessions = decoding_of(small_model, room=room)
    found = profiling.take_timeline(engine, sessions, "boundary")
    assert (found.step_kind, found.context) == ("boundary", 32)
    assert sessions[0].num_cached_tokens == 33
    assert len(sessions[0].table) == 5


def test_a_boundary_comes_before_the_profiler_too(small_model):
    """With one step alone, the first boundary (8) is among those without the profiler: it gives the plain time."""
    found = profiling.take_timeline(*decoding_of(small_model), "boundary", warmup=1)
    assert found.context == 16
    assert found.plain_us > 0


@pytest.mark.parametrize("number", ["035", "061", "062", "064", "065", "066"])
def test_right_after_a_fork_all_write_into_a_block_that_they_share(small_model, number, monkeypatch):
    engine, sessions = decoding_of(small_model, number=number)
    decode, shared = engine.launch, []

    def watched(sessions):
        first, second = (engine.kv.blocks_of(session.table) for session in sessions)
        size = engine.config.block_size
        shared.append((first[-1] == second[-1] and len(first) * size > sessions[0].num_cached_tokens, len(sessions)))
        return decode(sessions)

    monkeypatch.setattr(engine, "launch", watched)
    found = profiling.take_timeline(engine, sessions, "fork")
    assert found.step_kind == "fork"
    assert shared[-1] == (True, 2)
    assert found.context % 8 > 1
    assert sessions[0].num_cached_tokens == found.context + 1
    assert sessions[1].table is None  # it was freed, and another has taken its place
    assert Timeline.of(json.loads(json.dumps(found.document()))) == found


def test_a_timeline_without_room_for_its_steps_is_refused_before_the_first(small_model):
    for prompts, room, more, message in (
        (((1, 2, 3),) * 2, 26, {}, "no room for 20 decode steps and then one inside a block"),
        (((1, 2, 3),) * 2, 32, {"step": "boundary"}, "no room for 20 decode steps and then one at a block boundary"),
        (((1, 2, 3), (1, 2)), 60, {"step": "boundary"}, "no room for 20 decode steps and then one at a block"),
        (((1, 2, 3),) * 2, 60, {"step": "odd"}, "a step 'odd': give one of inside, boundary, fork"),
        (((1, 2, 3),) * 2, 26, {"step": "fork"}, "no room for 20 decode steps and then one right after a fork"),
        (((1, 2, 3),), 60, {"step": "fork"}, "a step right after a fork is one of 2 sessions or more"),
        (((1, 2, 3),) * 2, 60, {"warmup": 0}, "warmup is 0"),
    ):
        engine, sessions = decoding_of(small_model, prompts, room)
        with pytest.raises(ConfigError, match=message):
            profiling.take_timeline(engine, sessions, **more)
        assert [len(session.completion_ids) for session in sessions] == [1] * len(prompts)
