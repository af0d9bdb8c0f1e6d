"""Timelines of a decode step: what a profiler saw is kept, stored small, refused when damaged, and drawn to scale."""

import itertools
import json
import math

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex, to_rgb

from rosecourse import ConfigError, EngineConfig, InferenceEngine, RosecourseError, SamplingParams, lesson
from rosecourse.measure import profiling, timeline
from rosecourse.measure.profiling import Event, timeline_of
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline, untouched_sentence
from rosecourse.pictures.colours import COLOURS, KIND_COLOURS
from rosecourse.pictures.timeline import draw_timeline
from tests.support.drawn import assert_readable, texts_drawn

PLACE, TABLES, PLAN, FORWARD, APPEND = timeline.PARTS
OLD = (TABLES, FORWARD, APPEND)  # the ranges of the steps up to 061
H2D = "roseinfer.decode_step_sessions.h2d_block_tables"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


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
    """24 and 25 begin a block and read it for the first time; 23 to 25 are those that the profiler forgets."""
    engine, sessions = decoding_of(small_model)
    found = profiling.take_timeline(engine, sessions)
    first = 3 + profiling.WARMUP + profiling.PROFILER_WARMUP
    assert found.context == next(n for n in range(first, 60) if n % 8 > 1)
    assert found.step_kind == "inside"
    assert sessions[0].num_cached_tokens == found.context + 1


@pytest.mark.parametrize("room", [60, 34])
def test_at_a_boundary_every_session_begins_a_block(small_model, room):
    """The first after 20 steps alone and 3 that the profiler forgets."""
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


@pytest.mark.parametrize("number", ["035", "061", "062", "064", "065"])
def test_right_after_a_fork_all_write_into_a_block_that_they_share(small_model, number, monkeypatch):
    engine, sessions = decoding_of(small_model, number=number)
    decode, shared = engine.decode_step_sessions, []

    def watched(sessions):
        first, second = (engine.kv.blocks_of(session.table) for session in sessions)
        size = engine.config.block_size
        shared.append((first[-1] == second[-1] and len(first) * size > sessions[0].num_cached_tokens, len(sessions)))
        return decode(sessions)

    monkeypatch.setattr(engine, "decode_step_sessions", watched)
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


# -- stored -------------------------------------------------------------------------------------------------------


def large(kernels=150, length=2800.0, appends=40):
    """A step like a GPU's: kernels of 1 to 30 us, and the ranges of the host."""
    scale = length / 2800
    spans = zip(OLD, (50, 350, 1850), (250, 1400, 600), strict=True)
    ranges = [Range(name, round(start * scale, 1), round(span * scale, 1)) for name, start, span in spans]
    kinds = ["attention", "matrix", "other", "matrix", "other"]
    done = []
    for n in range(kernels):
        kind = "append" if n >= kernels - appends else "copy" if n == 0 else kinds[n % 5]
        gap = length / (kernels + 1)
        done.append(Kernel(f"{kind}_kernel_{n % 9}", kind, round(gap * (n + 0.5), 1), round(min(gap, 1 + n % 30), 1)))
    return Timeline((Range(STEP, 0.0, length), *ranges), tuple(done), "NVIDIA H200", 2310.4, "inside", 256)


def test_a_document_is_small_and_comes_back_whole():
    for one in (large(200), large(99, 1900.0, 1)._replace(step_kind="boundary", context=64)):
        text = json.dumps(one.document(), separators=(",", ":"))
        assert len(text) < 5_000
        assert Timeline.of(json.loads(text)) == one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("ranges"), "not of the form"),
        (lambda d: d.pop("step_kind"), "not of the form"),
        (lambda d: d.update(step_kind="odd"), "a timeline of a step 'odd'"),
        (lambda d: d.update(context=0), "with 0 positions"),
        (lambda d: d.update(context=1.5), "with 1.5 positions"),
        (lambda d: d.update(ranges=[]), "without a step"),
        (lambda d: d["ranges"].pop(0), "without a step"),
        (lambda d: d["ranges"][0].__setitem__(2, 0), "without a step"),
        (lambda d: d.update(plain=0), "without a step"),
        (lambda d: d["ranges"][1].__setitem__(2, 28_000), "ends after its step"),
        (lambda d: d["ranges"][1].__setitem__(0, 3), "is no text"),
        (lambda d: d["ranges"][1].pop(), ""),
        (lambda d: d.update(device=None), "is no text"),
        (lambda d: d["kernels"].pop(), "zip()"),
        (lambda d: d["kernels"].__setitem__(0, 99), "not of the form"),
        (lambda d: d["kernels"].__setitem__(0, -1), "a time in a timeline is -1"),
        (lambda d: d["kernels"].__setitem__(1, -5), "a time in a timeline is -5"),
        (lambda d: d["kernels"].__setitem__(2, 1.5), "a time in a timeline is 1.5"),
        (lambda d: d["kernels"].__setitem__(2, True), "a time in a timeline is True"),
        (lambda d: d["kernel_names"][0].__setitem__(0, "odd"), "of the kind 'odd'"),
        (lambda d: d["kernel_names"][0].__setitem__(1, 5), "is no text"),
    ],
)
def test_a_document_of_another_form_is_refused(change, message):
    document = large().document()
    change(document)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is looked at below)
        Timeline.of(document)
    assert message in str(caught.value)


# -- drawn --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4.5), layout="constrained")
    yield ax
    plt.close(figure)


def test_a_picture_has_every_range_and_kernel_at_its_time(ax):
    sides = {"before": large(), "after": large(99, 1400.0, 1)}
    sides["after"] = sides["after"]._replace(ranges=sides["after"].ranges[:3])
    draw_timeline(ax, sides, 64, "Lesson 038\nNVIDIA H200")
    bars = [(to_hex(b.get_facecolor()), round(b.get_x(), 4), round(b.get_width(), 4)) for b in ax.patches]
    colours = {name: colour.lower() for name, colour in COLOURS.items()}
    assert bars == [
        (colours["rest"], 0, 2.8),
        (colours["block_tables"], 0.05, 0.25),
        (colours["forward"], 0.35, 1.4),
        (colours["kv_append"], 1.85, 0.6),
        (colours["rest"], 0, 1.4),
        (colours["block_tables"], 0.025, 0.125),
        (colours["forward"], 0.175, 0.7),
    ]
    drawn = {}
    for bars in ax.collections:
        if bars.get_label() in profiling.KINDS:
            drawn.setdefault(bars.get_label(), []).append(bars.get_paths())
    for kind in profiling.KINDS:
        wanted = [[k for k in one.kernels if k.kind == kind] for one in sides.values()]
        for kernels, paths in zip(wanted, drawn[kind], strict=True):
            assert len(kernels) == len(paths) > 0
            for kernel, path in zip(kernels, paths, strict=True):
                box = path.get_extents()
                assert (box.x0, box.width) == pytest.approx((kernel.start_us / 1e3, kernel.duration_us / 1e3))
    assert_readable(ax)


def test_a_picture_says_how_busy_the_device_is_and_what_each_part_takes(ax):
    draw_timeline(ax, {"before": large(), "after": large(99, 1400.0, 1)}, 64, "title")
    texts = [text.get_text() for text in texts_drawn(ax)]
    busy = f"device busy {large().busy_us / 1e3:.2f} ms ({large().busy_share:.0%}) in 150 kernels and copies"
    assert f"before (inside a block; 64 requests, 256 tokens in the cache): 2.80 ms with the profiler\n{busy}" in texts
    assert (
        sum(
            text.startswith("after (inside a block; 64 requests, 256 tokens in the cache): 1.40 ms with")
            for text in texts
        )
        == 1
    )
    assert {"forward 1.40 ms", "forward 0.70 ms", "KV append 0.60 ms"} <= set(texts)
    assert "KV append: 0.60 → 0.30 ms" in texts
    assert "sample and the rest: 0.55 → 0.28 ms" in texts
    assert sum(text.startswith("KV append: ") and text.endswith(" ms (40 → 1)") for text in texts) == 1
    assert any("ms since the start of the step" in text for text in texts)


def test_without_a_device_or_a_before_the_picture_stands(ax):
    draw_timeline(ax, {"after": large()._replace(kernels=(), device="CPU")}, 64, "title")
    told = "after (inside a block; 64 requests, 256 tokens in the cache): 2.80 ms with the profiler, CPU"
    assert told in [t.get_text() for t in ax.texts]
    assert len(ax.patches) == 4
    assert_readable(ax)


def test_a_picture_says_which_kind_of_step_it_shows(ax):
    draw_timeline(ax, {"after": large()._replace(step_kind="boundary", context=1280)}, 64, "title")
    assert any(
        t.get_text().startswith("after (at a block boundary; 64 requests, 1,280 tokens in the cache): 2.80 ms")
        for t in ax.texts
    )
    assert_readable(ax)


def test_a_part_whose_name_does_not_fit_on_a_line_has_it_on_two(ax):
    one = large()
    ranges = [r._replace(duration_us=350.0) if r.name == APPEND else r for r in one.ranges]
    draw_timeline(ax, {"after": one._replace(ranges=tuple(ranges))}, 64, "title")
    assert {"forward 1.40 ms", "KV append\n0.35 ms"} <= {text.get_text() for text in ax.texts}
    assert not any("block tables" in text.get_text() for text in ax.texts)  # too narrow: the legend has it
    assert_readable(ax)


def test_the_baselines_thousands_of_kernels_can_be_read_too(ax):
    wide = large(3000, 41_234.0, 2300)
    draw_timeline(ax, {"before": wide, "after": large()}, 64, "Lesson 038: batched KV append\nNVIDIA H200")
    assert len(json.dumps(wide.document(), separators=(",", ":"))) < 40_000
    assert_readable(ax)


def test_kinds_of_kernels_differ_in_more_than_hue():
    rgb = [to_rgb(colour) for colour in KIND_COLOURS.values()]
    assert list(KIND_COLOURS) == list(timeline.KIND_LABELS) == list(profiling.KINDS)
    assert min(math.dist(one, other) for one, other in itertools.combinations(rgb, 2)) > 0.3


def test_a_picture_of_steps_with_other_stages_has_the_parts_of_both(ax):
    one = large()
    step, tables, forward, _ = one.ranges
    after = one._replace(ranges=(step, tables._replace(name=PLAN), forward))
    draw_timeline(ax, {"before": one, "after": after}, 64, "title")
    told = [text.get_text() for legend in (ax.get_legend(), *ax.artists) for text in legend.get_texts()]
    assert [text for text in told if "→" in text and "(" not in text] == [
        "plan rows: 0.00 → 0.25 ms",
        "block tables: 0.25 → 0.00 ms",
        "forward: 1.40 → 1.40 ms",
        "KV append: 0.60 → 0.00 ms",
        "sample and the rest: 0.55 → 1.15 ms",
    ]
    assert_readable(ax)


def test_what_lies_in_other_ranges_is_not_left_alone():
    """As at 064: the block tables went and a plan came; whatever is in no range may have taken over some of it."""

    def one(name, forward_us):
        ranges = [(STEP, 0, 9000), (name, 10, 50), (FORWARD, 100, forward_us)]
        return Timeline(tuple(Range(*r) for r in ranges), (), "a GPU", 5000.0)

    sides = {"before": one(TABLES, 3000.0), "after": one(PLAN, 4000.0)}
    told = untouched_sentence(sides, ["step", "block_tables", "rows"])
    assert "3.00 ms in the step before and 4.00 ms in the one after" in told
    told = untouched_sentence(sides, ["step", "forward", "block_tables"])
    assert told.startswith("The lesson leaves no range of the host alone: a timeline is one step")


def test_what_the_lesson_leaves_alone_is_said_beside_its_timelines():
    def one(forward_us):
        ranges = [
            (STEP, 0, 9000),
            ("roseinfer.model.forward", 100, forward_us),
            ("roseinfer.kv.append_token", 8000, 500),
        ]
        return Timeline(tuple(Range(*r) for r in ranges), (), "a GPU", 5000.0)

    told = untouched_sentence({"before": one(3000.0), "after": one(4000.0)}, ["kv_append"])
    assert told.startswith(
        "What the lesson leaves alone took the host 8.50 ms in the step before and 8.50 ms in the one"
    )
    told = untouched_sentence({"before": one(3000.0), "after": one(4000.0)}, ["kv_append", "step"])
    assert "3.00 ms in the step before and 4.00 ms in the one after" in told
