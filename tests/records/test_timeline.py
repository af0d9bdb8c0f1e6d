"""Timelines of a decode step: what a profiler saw is kept, stored small, refused when damaged, and drawn to scale."""

import itertools
import json
import math

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex, to_rgb

from rosecourse import ConfigError, EngineConfig, InferenceEngine, LessonError, RosecourseError, SamplingParams
from rosecourse.measure import profiling, timeline
from rosecourse.measure.profiling import STEPS, Event, timeline_of
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.pictures.colours import COLOURS, KIND_COLOURS
from rosecourse.pictures.timeline import draw_timeline
from rosecourse.records.comparisons import recorded_comparison
from rosecourse.records.sealed import seal
from rosecourse.records.timelines import recorded_timelines, timelines_document, timelines_file_name

TABLES, FORWARD, APPEND = timeline.PARTS
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
    found = timeline_of(reversed(events), [True], "NVIDIA H200", 83.04)
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
    assert [found.part_us(part) for part in COLOURS] == [10, 30, 20, 40]
    assert found.busy_share == pytest.approx(0.41)  # 30 to 50 counts once


def test_without_launches_the_range_on_the_device_says_what_the_append_did():
    events = [event for event in step_events() if not event.name.startswith("cu")]
    kinds = [kernel.kind for kernel in timeline_of(events, [True], "x", 1.0).kernels]
    assert kinds == ["copy", "attention", "matrix", "append", "append"]


def test_the_step_of_median_length_is_kept_but_none_in_which_a_block_begins():
    lengths = [100.0, 130.0, 110.0, 140.0, 120.0]
    events = [event for n, length in enumerate(lengths) for event in step_events(1000.0 * n, length)]

    def chosen(*steady):
        return timeline_of(events, steady, "CPU", 1.0).step_us

    assert chosen(*[True] * 5) == chosen(*[False] * 5) == 120
    assert chosen(True, True, False, True, False) == 130
    assert chosen(True, False, False, False, False) == 100
    with pytest.raises(RosecourseError, match="the profiler saw 5 of 4 steps: record once more"):
        chosen(*[True] * 4)


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
        ("Memset (Device)", "Memset", "copy"),
        ("x" * 99, "x" * 40, "other"),
        ("", "?", "other"),
    ],
)
def test_names_are_shortened_and_told_apart(name, short, kind):
    assert profiling.short_name(name) == short
    assert profiling.kind_of(name) == kind


# -- taken --------------------------------------------------------------------------------------------------------


@pytest.fixture
def decoding(small_model):
    """An engine with two sessions that have been prefilled, with room for one timeline."""
    engine = InferenceEngine(small_model, EngineConfig(block_size=8, max_batch_size=2, max_seq_len=STEPS + 4))
    params = SamplingParams(max_new_tokens=STEPS + 1, stop_on_eos=False)
    sessions = [engine.new_session([1, 2, 3], params) for _ in range(2)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return engine, sessions


def test_a_timeline_on_a_cpu_has_the_ranges_in_order_inside_the_step(decoding, monkeypatch):
    steady = []
    monkeypatch.setattr(
        profiling, "timeline_of", lambda events, fits, *more: steady.extend(fits) or timeline_of(events, fits, *more)
    )
    engine, sessions = decoding
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
    first = 3 + profiling.WARMUP + profiling.PROFILER_WARMUP  # cached before the first that may be kept
    assert steady == [n % 8 > 1 for n in range(first, first + profiling.KEPT)]
    assert Timeline.of(json.loads(json.dumps(found.document()))) == found
    assert all(len(session.token_ids) == STEPS + 4 for session in sessions)


def test_a_timeline_without_room_for_its_steps_is_refused_before_the_first(decoding):
    engine, sessions = decoding
    for more, message in (
        ({"kept": profiling.KEPT + 1}, f"takes {STEPS + 1} decode steps, but the sessions have room for {STEPS}"),
        ({"warmup": 0}, "warmup is 0"),
        ({"kept": 0}, "kept is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            profiling.take_timeline(engine, sessions, **more)
    assert all(len(session.token_ids) == 4 for session in sessions)


# -- stored -------------------------------------------------------------------------------------------------------


def large(kernels=150, length=2800.0, appends=40):
    """A step like a GPU's: kernels of 1 to 30 us, and the ranges of the host."""
    scale = length / 2800
    spans = zip(timeline.PARTS, (50, 350, 1850), (250, 1400, 600), strict=True)
    ranges = [Range(name, round(start * scale, 1), round(span * scale, 1)) for name, start, span in spans]
    kinds = ["attention", "matrix", "other", "matrix", "other"]
    done = []
    for n in range(kernels):
        kind = "append" if n >= kernels - appends else "copy" if n == 0 else kinds[n % 5]
        gap = length / (kernels + 1)
        done.append(Kernel(f"{kind}_kernel_{n % 9}", kind, round(gap * (n + 0.5), 1), round(min(gap, 1 + n % 30), 1)))
    return Timeline((Range(STEP, 0.0, length), *ranges), tuple(done), "NVIDIA H200", 2310.4)


HEAD = {"lesson": "038", "commit": "c0ffee", "host": {"gpu": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}}


def write(folder, document, number="038"):
    path = folder / "nvidia-h200" / timelines_file_name(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, separators=(",", ":")))
    return path


def test_a_file_is_small_and_comes_back_whole(tmp_path):
    before, after = large(200), large(99, 1900.0, 1)
    path = write(tmp_path, timelines_document(HEAD, {"before": before, "after": after}))
    assert path.name == "038.timeline.json"
    assert path.stat().st_size < 10_000
    assert recorded_timelines("038", folder=tmp_path) == {"before": before, "after": after}
    assert recorded_timelines("038", "NVIDIA H200", tmp_path) == recorded_timelines("038", "nvidia-h200", tmp_path)
    assert recorded_timelines("038", "another", tmp_path) is None
    assert recorded_timelines("036", folder=tmp_path) is None
    assert recorded_comparison("038", folder=tmp_path) is None  # a timeline is no file of runs
    with pytest.raises(LessonError):
        recorded_timelines("042", folder=tmp_path)
    write(tmp_path, timelines_document(HEAD | {"lesson": "035"}, {"after": after}), "035")
    assert recorded_timelines("035", folder=tmp_path) == {"after": after}


def refused(folder, message):
    with pytest.raises(RosecourseError) as caught:
        recorded_timelines("038", folder=folder)
    text = str(caught.value)
    assert text.startswith(f"the timeline file {folder / 'nvidia-h200' / '038.timeline.json'} cannot be used, ")
    assert message in text
    assert text.endswith("restore it from git, or record it anew with `rosecourse record --lessons 038`")
    assert "\n" not in text


def test_a_damaged_file_is_refused(tmp_path):
    path = write(tmp_path, timelines_document(HEAD, {"before": large(), "after": large()}))
    whole = path.read_bytes()
    for content, message in (
        (b"", ""),
        (whole[:-9], ""),
        (whole.replace(b"14000", b"14001", 1), "its checksum does not fit"),
        (whole.replace(b"14000", b"NaN", 1), "it has NaN, which is no number"),
        (b"[]", "its checksum does not fit"),
        (b"\xff", "decode"),
        (b"[" * 100_000, ""),
    ):
        path.write_bytes(content)
        refused(tmp_path, message)
    path.unlink()
    path.mkdir()
    refused(tmp_path, "Is a directory")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), "its format is 2, not 1"),
        (lambda d: d.update(lesson="036"), "it is of lesson '036'"),
        (lambda d: d.update(before=None), "not of the form"),
        (lambda d: d["after"].pop("ranges"), "not of the form"),
        (lambda d: d["after"].update(ranges=[]), "without a step"),
        (lambda d: d["after"]["ranges"].pop(0), "without a step"),
        (lambda d: d["after"]["ranges"][0].__setitem__(2, 0), "without a step"),
        (lambda d: d["after"].update(plain=0), "without a step"),
        (lambda d: d["after"]["ranges"][1].__setitem__(2, 28_000), "ends after its step"),
        (lambda d: d["after"]["ranges"][1].__setitem__(0, 3), "is no text"),
        (lambda d: d["after"]["ranges"][1].pop(), ""),
        (lambda d: d["after"].update(device=None), "is no text"),
        (lambda d: d["after"]["kernels"].pop(), "zip()"),
        (lambda d: d["after"]["kernels"].__setitem__(0, 99), "not of the form"),
        (lambda d: d["after"]["kernels"].__setitem__(0, -1), "a time in a timeline is -1"),
        (lambda d: d["after"]["kernels"].__setitem__(1, -5), "a time in a timeline is -5"),
        (lambda d: d["after"]["kernels"].__setitem__(2, 1.5), "a time in a timeline is 1.5"),
        (lambda d: d["after"]["kernels"].__setitem__(2, True), "a time in a timeline is True"),
        (lambda d: d["after"]["kernel_names"][0].__setitem__(0, "odd"), "of the kind 'odd'"),
        (lambda d: d["after"]["kernel_names"][0].__setitem__(1, 5), "is no text"),
    ],
)
def test_a_file_of_another_form_is_refused_though_its_checksum_fits(tmp_path, change, message):
    document = timelines_document(HEAD, {"before": large(), "after": large()})
    change(document)
    write(tmp_path, seal(document))
    refused(tmp_path, message)


# -- drawn --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(9, 4.5), layout="constrained")
    yield ax
    plt.close(figure)


def texts_drawn(ax):
    """Every text of the picture with its box in pixels."""
    ax.figure.canvas.draw()
    legends = [child for child in ax.get_children() if hasattr(child, "get_texts")]
    ticks = [tick.label1 for tick in ax.xaxis.get_major_ticks() if ax.viewLim.intervalx[1] >= tick.get_loc()]
    found = [*ax.texts, ax.title, ax.xaxis.label, *ticks, *ax.get_yticklabels()]
    found += [text for legend in legends for text in [*legend.get_texts(), legend.get_title()]]
    return {text: text.get_window_extent() for text in found if text.get_text() and text.get_visible()}


def assert_readable(ax):
    boxes = list(texts_drawn(ax).values())
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other), (one, other)
    whole = ax.figure.bbox
    for box in boxes:
        assert whole.x0 <= box.x0, box
        assert box.x1 <= whole.x1, box
        assert whole.y0 <= box.y0, box
        assert box.y1 <= whole.y1, box


def test_a_picture_has_every_range_and_kernel_at_its_time(ax):
    sides = {"before": large(), "after": large(99, 1400.0, 1)}
    sides["after"] = sides["after"]._replace(ranges=sides["after"].ranges[:3])
    draw_timeline(ax, sides, "Lesson 038\nNVIDIA H200")
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
    draw_timeline(ax, {"before": large(), "after": large(99, 1400.0, 1)}, "title")
    texts = [text.get_text() for text in texts_drawn(ax)]
    share = 100 * large().busy_share
    assert f"before: 2.80 ms with the profiler, 150 kernels, device busy {share:.0f} % of the step" in texts
    assert sum(text.startswith("after: 1.40 ms with") for text in texts) == 1
    assert {"forward 1.40 ms", "forward 0.70 ms", "KV append 0.60 ms"} <= set(texts)
    assert "KV append: 0.60 → 0.30 ms" in texts
    assert "sample and the rest: 0.55 → 0.28 ms" in texts
    assert sum(text.startswith("KV append: ") and text.endswith(" ms (40 → 1)") for text in texts) == 1
    assert any("ms since the start of the step" in text for text in texts)


def test_without_a_device_or_a_before_the_picture_stands(ax):
    draw_timeline(ax, {"after": large()._replace(kernels=(), device="CPU")}, "title")
    assert "after: 2.80 ms with the profiler, CPU: no kernels" in [t.get_text() for t in ax.texts]
    assert len(ax.patches) == 4
    assert_readable(ax)


def test_the_baselines_thousands_of_kernels_can_be_read_too(ax):
    wide = large(3000, 41_234.0, 2300)
    draw_timeline(ax, {"before": wide, "after": large()}, "Lesson 038: batched KV append\nNVIDIA H200")
    assert len(json.dumps(wide.document(), separators=(",", ":"))) < 40_000
    assert_readable(ax)


def test_kinds_of_kernels_differ_in_more_than_hue():
    rgb = [to_rgb(colour) for colour in KIND_COLOURS.values()]
    assert list(KIND_COLOURS) == list(timeline.KIND_LABELS) == list(profiling.KINDS)
    assert min(math.dist(one, other) for one, other in itertools.combinations(rgb, 2)) > 0.3
