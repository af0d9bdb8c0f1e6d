"""Recorded comparisons: written small, read back whole, and refused when they are damaged."""

import copy
import json
import random
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import ConfigError, LessonError, RosecourseError
from rosecourse.measure.compare import HEADLINES, Comparison, Ladder
from rosecourse.measure.metrics import per_request
from rosecourse.measure.traffic import LOAD, TrafficComparison
from rosecourse.records.comparisons import (
    WORKLOADS,
    RecordedComparison,
    recorded_comparison,
    recorded_ladder,
    recorded_traffic,
)
from rosecourse.records.recordings import FORMAT, Recording, read_recording
from rosecourse.records.results import RESULTS, gpu_folder
from rosecourse.records.run_json import packed_run, unpacked_run
from rosecourse.records.sealed import canonical_bytes, seal
from rosecourse.records.steps import read_steps
from tests.support.recordings import STEPS, document_of, run_of, steady, twice_as_fast, write_recording


@pytest.fixture
def document():
    return twice_as_fast()


@pytest.fixture
def results(tmp_path, document):
    write_recording(tmp_path / "nvidia-h200" / "A.json", document)
    return tmp_path


# -- the format ---------------------------------------------------------------------------------------------------


def test_a_run_comes_back_to_the_microsecond():
    """Whatever moments a request's tokens came at: preempted, admitted late, alone."""
    rng = random.Random(0)
    for _ in range(50):
        moments = sorted(rng.sample(range(1, 10**6), 30))
        run = run_of([sorted(m / 1e6 for m in rng.sample(moments, rng.randint(1, 30))) for _ in range(5)])
        found = unpacked_run(json.loads(json.dumps(packed_run(run, 5))))
        assert (found.start, found.completions, found.num_tokens) == (0, None, run.num_tokens)
        assert found.total_seconds == pytest.approx(run.total_seconds, abs=1e-6)
        assert astuple(found.stats) == pytest.approx(astuple(run.stats), abs=1e-6)
        for was, now in zip(run.times, found.times, strict=True):
            assert now.tokens == pytest.approx([t - run.start for t in was.tokens], abs=1e-6)
            assert (now.submitted, now.admitted) == (0, 1e-4)
        raw, again = per_request([run.times]), per_request([found.times])
        for name, values in raw.items():
            assert again[name] == pytest.approx(values, abs=2e-6), name


def test_consecutive_moments_are_stored_as_a_range():
    found = packed_run(run_of([[0.001, 0.002, 0.003, 0.005], [0.002, 0.004, 0.005]]), 5)
    assert found["moments_us"] == [1000] * 5
    assert found["tokens"] == [[0, 3, 4, 1], [1, 1, 3, 2]]
    assert (found["total_us"], found["decode_steps"], found["decode_bytes"]) == (5000, 3, 5)


def test_ten_runs_of_256_requests_of_256_tokens_stay_far_below_a_megabyte():
    """Streaming, 16 at a time, admitted in uneven groups: prefills fall between the others' decode steps."""
    clock = np.cumsum(np.random.default_rng(0).uniform(0.004, 0.012, 5000)).tolist()
    times = []
    for wave in range(16):
        for request in range(16):
            first = wave * 257 + request % 4
            moments = [first, *range(wave * 257 + 4, wave * 257 + 4 + 255)]
            times.append([clock[m] for m in moments])
    size = len(json.dumps(packed_run(run_of(times), 10**12), separators=(",", ":")))
    assert 10 * size < 700_000


# -- figures ------------------------------------------------------------------------------------------------------


def test_figures_ratios_and_shares(results):
    found = recorded_comparison("036", folder=results)
    assert isinstance(found, Comparison)
    assert str(found.conditions) == (
        "2 requests x 4 tokens; 1 warm-up and 5 counted runs of each, interleaved; random gpt2, float16; NVIDIA H200; "
        "torch 2.11.0"
    )
    assert found.after.throughputs == pytest.approx([8 / (4 * s) for s in _steps(found)])
    assert found.after.figure("TPOT", "p50") == pytest.approx(4.1)
    assert found.before.figure("total time", "mean") == pytest.approx(np.mean([0.032, 0.0336, 0.0328, 0.032, 0.0352]))
    for metric, statistic in HEADLINES:
        better = found.ratio(metric, statistic)
        assert (better.value, better.low, better.high) == pytest.approx((2, 2, 2), rel=1e-3), metric
    assert found.speedup.verdict == "faster"
    assert found.speedup == found.ratio("total time")
    # 1 GB at 4 TB/s is 0.25 ms, of a median run's 4 steps of 4.1 ms.
    assert found.share_of_floor("after") == pytest.approx(0.00025 / 0.0164)
    assert found.share_of_floor("before") == pytest.approx(0.00025 / 0.0328)


def _steps(found):
    return [run.times[0].tokens[0] for run in found.after.runs]


def test_itl_is_pooled_over_requests_and_runs():
    slow_once = run_of([[0.01, 0.02, 0.05, 0.06]] * 2)
    document = document_of({"035": [steady(0.01)] * 3, "036": [steady(0.01), steady(0.01), slow_once]})
    found = RecordedComparison.of(Recording.of(document), "035", "036")
    assert len(found.after.itl_ms) == 2 * 3 + 2 * 3 + 2 * 3
    pooled = [0.01] * 16 + [0.03] * 2
    for statistic, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert found.after.figure("ITL", statistic) == pytest.approx(1e3 * np.percentile(pooled, percent))
    assert found.before.itl_along_steps_ms == pytest.approx([10] * 3)


def test_tables(results):
    table = recorded_comparison("036", folder=results).table()
    assert table.columns.tolist() == ["before", "after", "times better"]
    assert table.loc["TPOT p50 (ms/token)"].tolist() == [
        pytest.approx(8.2),
        pytest.approx(4.1),
        "2.000x [2.000, 2.000]",
    ]
    assert table.attrs["provenance"] == recorded_comparison("036", folder=results).provenance
    assert table.loc["share of the floor (%)", "after"] == pytest.approx(1.524, abs=0.001)
    assert len(table) == len(HEADLINES) + 1


def test_provenance_is_one_line(document):
    found = RecordedComparison.of(Recording.of(document), "035", "036")
    line = "NVIDIA H200, driver 580.1, torch 2.11.0, commit 0123456789ab, 2026-11-21T08:00:00+00:00, "
    assert found.provenance == line + "`rosecourse record --workloads A`"
    assert "commit 0123456789ab with changes" in Recording.of(document | {"dirty": True}).provenance
    on_cpu = Recording.of(document | {"host": {"cpu": "a CPU", "gpu": None, "driver": None}, "commit": None})
    assert on_cpu.provenance.startswith("a CPU, torch 2.11.0, commit unknown, ")


def test_the_conditions_say_how_long_the_prompt_was(results):
    assert recorded_comparison("036", folder=results).conditions.prompt_tokens == 1


def test_the_first_lesson_has_no_before(results):
    found = recorded_comparison("035", folder=results)
    assert found.sides == [found.after]
    assert found.after.figure("TPOT", "p50") == pytest.approx(8.2)
    for better in (found.speedup, found.ratio("TPOT"), found.tail_ratio):
        assert np.isnan([better.value, better.low, better.high]).all()
    assert found.speedup.verdict == "nothing to compare"
    assert np.isnan(found.share_of_floor("before"))
    assert found.table()["before"].isna().all()
    assert found.table()["times better"].eq("").all()
    assert len(found.before.itl_ms) == len(found.before.itl_along_steps_ms) == 0


def test_neighbours_share_their_figure(tmp_path):
    """What is after one lesson is before the next: the same runs."""
    rungs = {number: [steady(step * n) for step in STEPS] for n, number in ((3, "035"), (2, "036"), (1, "038"))}
    write_recording(tmp_path / "cpu" / "A.json", document_of(rungs))
    one, other = recorded_comparison("036", folder=tmp_path), recorded_comparison("038", folder=tmp_path)
    assert one.after.runs == other.before.runs
    assert one.share_of_floor("after") == other.share_of_floor("before")
    assert [one.speedup.value, other.speedup.value] == pytest.approx([1.5, 2], rel=1e-3)


def test_a_ladder_has_all_rungs_of_a_workload(results, document):
    found = recorded_ladder("A", folder=results)
    assert isinstance(found, Ladder)
    assert [rung.name for rung in found.rungs] == ["035", "036"]
    assert found.titles == ["title of 035", "title of 036"]
    assert [better.value for better in found.speedups] == pytest.approx([1, 2], rel=1e-3)
    table = found.table()
    assert list(table.index) == ["035", "036"]
    assert list(table["share of the floor (%)"]) == pytest.approx([0.762, 1.524], abs=0.001)
    assert table.attrs["provenance"] == found.provenance == Recording.of(document).provenance
    assert recorded_ladder("B", folder=results) is None
    with pytest.raises(ConfigError, match=rf"there is no ladder of 'D-load': give one of {', '.join(WORKLOADS[:-1])}$"):
        recorded_ladder("D-load", folder=results)


def test_mixed_traffic_is_read_from_its_burst_and_the_lessons_own_load(tmp_path):
    assert recorded_traffic("059", folder=tmp_path) is None
    burst = twice_as_fast("038", "059", "D-burst")
    write_recording(tmp_path / "cpu" / "D-burst.json", burst)
    assert recorded_traffic("059", folder=tmp_path) is None
    settings = burst["settings"] | {"rate": 12.5}
    write_recording(tmp_path / "cpu" / "D-load-059.json", twice_as_fast("038", "059", "D-load-059", settings=settings))
    found = recorded_traffic("059", folder=tmp_path)
    assert isinstance(found, TrafficComparison)
    assert found.rate == LOAD * len(found.load.after.runs[0].times) / np.median(found.burst.before.seconds)
    assert found.burst.speedup.value == pytest.approx(2, rel=1e-3)
    assert found.load.document["workload"] == "D-load-059"
    assert recorded_comparison("059", "D-load", folder=tmp_path).recording == found.load.recording
    assert recorded_comparison("059", "D-burst", folder=tmp_path).recording == found.burst.recording
    assert recorded_traffic("060", folder=tmp_path) is recorded_traffic("036", folder=tmp_path) is None


def test_mixed_traffic_with_a_request_that_gave_too_little_is_refused(tmp_path):
    """Its requests differ in their lengths, which follow from the seed, forks among them."""
    document = twice_as_fast("038", "059", "D-burst")
    assert len(Recording.of(document).rungs["059"].runs[0].times) == 3  # two requests, one of them with a fork
    short = changed(document, lambda d: d["rungs"]["059"][4]["tokens"][2].__setitem__(1, 15))
    refused(write_recording(tmp_path / "D-burst.json", short), "rung 059, run 5: request 2 gave 15 of ", "D-burst")
    other = changed(document, lambda d: d["settings"].update(traffic_seed=1))
    refused(write_recording(tmp_path / "D-burst.json", other), "rung 038, run 1: request 0 gave ", "D-burst")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.json")), ids=lambda path: path.stem)
def test_what_is_shipped_holds_every_token_of_its_workload(path):
    name, _, steps = path.stem.partition(".")
    found = read_steps(path, name) if steps else read_recording(path, name)
    assert found.document["workload"] == name


# -- which file ---------------------------------------------------------------------------------------------------


def test_which_recording(results, document):
    assert recorded_comparison("038", folder=results) is None  # its workload is there, but not this rung
    assert recorded_comparison("059", folder=results) is None
    assert recorded_comparison("036", "D-burst", folder=results) is None
    assert recorded_comparison("036", gpu="another", folder=results) is None
    assert recorded_comparison("036", gpu="../nvidia-h200", folder=results).conditions.device == "NVIDIA H200"
    assert recorded_comparison("036", folder=results / "none") is None
    other = document | {"host": document["host"] | {"gpu": "A GPU"}}
    write_recording(results / "a-gpu" / "A.json", seal(other))
    assert recorded_comparison("036", folder=results).conditions.device == "NVIDIA H200"  # the course's own comes first
    assert recorded_comparison("036", gpu="A GPU", folder=results).conditions.device == "A GPU"
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        recorded_comparison("042", folder=results)
    with pytest.raises(ConfigError, match=rf"there is no workload 'G': give one of {', '.join(WORKLOADS)}$"):
        recorded_comparison("036", "G", folder=results)
    assert gpu_folder("NVIDIA GeForce RTX 4090 (Ti)") == "nvidia-geforce-rtx-4090-ti"


def test_the_checksum_does_not_depend_on_the_order_of_keys_or_on_spaces(tmp_path, document):
    backwards = dict(reversed(document.items()))
    path = tmp_path / "A.json"
    path.write_text(json.dumps(backwards, indent=3))
    assert read_recording(path, "A").document == document
    assert canonical_bytes(document) == canonical_bytes(backwards)


def refused(path, message, workload="A"):
    with pytest.raises(RosecourseError) as caught:
        read_recording(path, workload)
    text = str(caught.value)
    assert text.startswith(f"the recorded file {path} cannot be used, ")
    assert message in text
    assert text.endswith(f": restore it from git, or record it anew with `rosecourse record --workloads {workload[0]}`")
    assert "\n" not in text


def test_a_damaged_file_is_refused(tmp_path, document):
    path = write_recording(tmp_path / "A.json", document)
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path, "")
    path.write_bytes(whole.replace(b'"total_us": 16000', b'"total_us": 15000', 1))
    refused(path, "its checksum does not fit")
    path.write_bytes(whole.replace(b"title of 035", b"title of \xff"))
    refused(path, "codec can't decode")
    path.write_bytes(whole.replace(b"4000000000000.0", b"NaN"))
    refused(path, "it has NaN, which is no number")
    path.write_bytes(whole.replace(b"4000000000000.0", b"1e999"))
    refused(path, "")
    for text in ("[]", "3", "{}", '{"sha256": null}', "[" * 100_000):
        path.write_text(text)
        refused(path, "")
    path.unlink()
    refused(path, "No such file or directory")
    path.mkdir()
    refused(path, "Is a directory")


def changed(document, change):
    changed = copy.deepcopy(document)
    change(changed)
    return seal(changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("host"), "the document has no 'host'"),
        (lambda d: d["host"].pop("driver"), "host has no 'driver'"),
        (lambda d: d.update(format=FORMAT + 1), f"its format is {FORMAT + 1}, not {FORMAT}"),
        (lambda d: d.update(workload="B"), "it is of workload 'B'"),
        (lambda d: d.update(dirty=0), "dirty is of type int"),
        (lambda d: d["rungs"].update({"036": {}}), "rung 036 is of type dict"),
        (lambda d: d["rungs"]["036"][0].update(total_us=True), "total_us is of type bool"),
        (lambda d: d["rungs"]["036"][0].update(total_us=1.5), "total_us is of type float"),
        (lambda d: d["rungs"]["036"][0]["tokens"][0].append("x"), "an item of an item of tokens is of type str"),
        (lambda d: d["rungs"]["036"][0]["moments_us"].append(10**30), ""),
        (lambda d: d["settings"].pop("max_batch_size"), "settings has no 'max_batch_size'"),
        (lambda d: d["settings"].update(benchmark=None), "benchmark is of type NoneType"),
        (lambda d: d["settings"].pop("model"), "settings has no 'model'"),
        (lambda d: d["versions"].update(torch=2), "torch is of type int"),
        (lambda d: d["rungs"]["036"][0].update(decode_bytes=10**400), "decode_bytes is a number of 401 digits"),
        (lambda d: d["rungs"]["036"][0].update(preemptions=2**63), "preemptions is a number of 19 digits"),
        (lambda d: d.update(format=True), "its format is True, not 2"),
        (lambda d: d["rungs"]["036"].pop(), "not as many runs as there are rounds"),
        (lambda d: d["rungs"].update({"035": []}), "not as many runs as there are rounds"),
        (lambda d: d.update(rounds=4), "not as many runs as there are rounds"),
        (lambda d: d.update(rounds=0, rungs={"035": [], "036": []}), "not as many runs as there are rounds"),
        (lambda d: d.update(rungs={}), "not as many runs as there are rounds"),
        (lambda d: d["titles"].pop("036"), "the title of 036 is of type NoneType"),
        (lambda d: d["settings"].update(rate=3), "rate is of type int"),
        (lambda d: d["settings"].pop("prompt_tokens"), "settings has no 'prompt_tokens'"),
        (lambda d: d["rungs"]["036"][0].update(decode_us=0), "a run without requests, or without time"),
        (lambda d: d["rungs"]["036"][0].update(submitted_us=[], admitted_us=[], tokens=[]), "a run without requests"),
        (lambda d: d["rungs"]["036"][0]["moments_us"].__setitem__(1, -1), "without time"),
        (lambda d: d.update(copy_bytes_per_second=0.0), "the copy bandwidth is not positive"),
        (lambda d: d["rungs"]["036"][0].update(submitted_us=[0]), "zip()"),
        (lambda d: d["rungs"]["036"][0].update(tokens=[[0, 5], [0, 4]]), "at moments that are not there"),
        (lambda d: d["rungs"]["036"][0].update(tokens=[[-1, 2], [0, 4]]), "at moments that are not there"),
        (lambda d: d["rungs"]["036"][0].update(tokens=[[], [0, 4]]), "at moments that are not there"),
        (lambda d: d["rungs"]["036"][0].update(tokens=[[0], [0, 4]]), "zip()"),
        (
            lambda d: d["rungs"]["036"][2].update(tokens=[[0, 4], [0, 3]]),
            "rung 036, run 3: request 1 gave 3 of 4 tokens",
        ),
        (lambda d: d["rungs"]["036"][0].update(tokens=[[0, 4], [0, 4, 0, 1]]), "request 1 gave 5 of 4 tokens"),
        (lambda d: d["settings"].update(max_new_tokens=5), "request 0 gave 4 of 5 tokens, and 1 more of 2 failed"),
        (lambda d: d["settings"].update(num_requests=3), "rung 035, run 1: 2 of 3 requests are there"),
        (lambda d: d["settings"].update(num_requests=10**12), "its workload has 1000000000000 requests"),
        (lambda d: d["settings"].update(traffic_seed=0.0), "traffic_seed is of type float"),
        (lambda d: d["settings"].update(traffic_seed=0, min_new_tokens="2"), "min_new_tokens is of type str"),
    ],
)
def test_a_file_of_another_form_is_refused_though_its_checksum_fits(tmp_path, document, change, message):
    refused(write_recording(tmp_path / "A.json", changed(document, change)), message)


def test_a_file_of_another_workload_is_refused(results):
    path = (results / "nvidia-h200" / "A.json").rename(results / "nvidia-h200" / "D-burst.json")
    refused(path, "it is of workload 'A'", "D-burst")
    with pytest.raises(RosecourseError, match=r"D-burst\.json cannot be used"):
        recorded_comparison("036", "D-burst", folder=results)


def test_the_rounds_of_an_unfinished_recording_are_no_recording(results):
    path = results / "nvidia-h200" / "A.json"
    path.rename(path.with_name("A.partial.json"))
    assert recorded_comparison("036", folder=results) is recorded_ladder("A", folder=results) is None


def test_a_file_cut_or_changed_anywhere_is_never_half_read(results, document):
    path = results / "nvidia-h200" / "A.json"
    whole = path.read_bytes()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 255))
    def damage(place, byte):
        path.write_bytes(whole[:place])
        refused(path, "")
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        try:
            assert read_recording(path, "A").document == document  # the same byte, or a space
        except RosecourseError as error:
            refused(path, "")
            assert str(path) in str(error)  # noqa: PT017 (either end is right)

    damage()
