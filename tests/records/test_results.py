"""Recorded runs: written small, read back whole, and refused when they are damaged."""

import copy
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import LessonError, RosecourseError
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.metrics import per_request
from rosecourse.measure.workload import Run
from rosecourse.records.archive import canonical, sealed, slug
from rosecourse.records.published import beside_published, published
from rosecourse.records.runs import FORMAT, HEADLINES, Recorded, RecordedRun, load, packed, recorded, recorded_gpus
from rosecourse.request.session import SessionTimes


def run_of(times, start=100.0, decode_seconds=None):
    """A run with these token times, in seconds after its start."""
    times = [SessionTimes(start, start + 1e-4, [start + t for t in tokens]) for tokens in times]
    end = max(t.tokens[-1] for t in times) - start
    stats = SchedulerStats(prefill_seconds=0.001, decode_seconds=decode_seconds or end, decode_steps=3)
    return Run(start, end, times, [[7] * len(t.tokens) for t in times], stats)


def steady(step, requests=2, tokens=4):
    """Requests that are in every step from the first on."""
    return run_of([[step * n for n in range(1, tokens + 1)]] * requests)


def document_of(before, after, lesson="036", **changes):
    document = {
        "format": FORMAT,
        "lesson": lesson,
        "title": "a title",
        "command": "rosecourse record --lessons 036",
        "date": "2026-11-21T08:00:00+00:00",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "host": {"cpu": "a CPU", "gpu": "NVIDIA H200", "driver": "580.1"},
        "versions": {"torch": "2.11.0", "triton": None},
        "settings": {
            "benchmark": "benchmark_scheduler",
            "num_requests": 64,
            "max_new_tokens": 512,
            "max_batch_size": 64,
        },
        "units": "",
        "definitions": {},
        "same_tokens": True,
        "copy_bytes_per_second": 4e12,
        "before": [packed(run, 10**9) for run in before],
        "after": [packed(run, 10**9) for run in after],
    }
    return document | changes


def write(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def document():
    """Five pairs, `after` twice as fast as `before`."""
    steps = [0.004, 0.0042, 0.0041, 0.004, 0.0044]
    return sealed(document_of([steady(2 * step) for step in steps], [steady(step) for step in steps]))


@pytest.fixture
def results(tmp_path, document):
    write(tmp_path / "nvidia-h200" / "036.json", document)
    return tmp_path


# -- the format ---------------------------------------------------------------------------------------------------


def test_a_run_comes_back_to_the_microsecond():
    """Whatever moments a request's tokens came at: preempted, admitted late, alone."""
    rng = random.Random(0)
    for _ in range(50):
        moments = sorted(rng.sample(range(1, 10**6), 30))
        run = run_of([sorted(m / 1e6 for m in rng.sample(moments, rng.randint(1, 30))) for _ in range(5)])
        found = RecordedRun.of(json.loads(json.dumps(packed(run, 5))))
        assert found.num_tokens == run.num_tokens
        for was, now in zip(run.times, found.times, strict=True):
            assert now.tokens == pytest.approx([t - run.start for t in was.tokens], abs=1e-6)
            assert (now.submitted, now.admitted) == (0, 1e-4)
        raw, again = per_request([run.times]), per_request([found.times])
        for name, values in raw.items():
            assert again[name] == pytest.approx(values, abs=2e-6), name


def test_consecutive_moments_are_stored_as_a_range():
    found = packed(run_of([[0.001, 0.002, 0.003, 0.005], [0.002, 0.004, 0.005]]), 5)
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
    size = len(json.dumps(packed(run_of(times), 10**12), separators=(",", ":")))
    assert 10 * size < 700_000


# -- figures ------------------------------------------------------------------------------------------------------


def test_figures_ratios_and_shares(results):
    found = recorded("036", folder=results)
    assert [run.total_throughput for run in found.after] == pytest.approx([8 / (4 * s) for s in _steps(found)])
    assert found.figure("after", "TPOT", "p50") == pytest.approx(4.1)
    assert found.figure("before", "total time", "mean") == pytest.approx(
        np.mean([0.032, 0.0336, 0.0328, 0.032, 0.0352])
    )
    for metric, statistic in HEADLINES:
        better = found.ratio(metric, statistic)
        assert (better.value, better.low, better.high) == pytest.approx((2, 2, 2), rel=1e-3), metric
    assert found.ratio().verdict == "faster"
    # 1 GB at 4 TB/s is 0.25 ms, of a median run's 4 steps of 4.1 ms.
    assert found.share_of_floor("after") == pytest.approx(0.00025 / 0.0164)
    assert found.share_of_floor("before") == pytest.approx(0.00025 / 0.0328)


def _steps(found):
    return [run.times[0].tokens[0] for run in found.after]


def test_itl_is_pooled_over_requests_and_runs():
    slow_once = run_of([[0.01, 0.02, 0.05], [0.01, 0.02, 0.05]])
    found = Recorded.of(sealed(document_of([steady(0.01)] * 3, [steady(0.01), steady(0.01), slow_once])))
    assert len(found.itl("after")) == 2 * 3 + 2 * 3 + 2 * 2
    pooled = [0.01] * 14 + [0.03] * 2
    for statistic, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert found.figure("after", "ITL", statistic) == pytest.approx(1e3 * np.percentile(pooled, percent))
    assert found.itl_along_steps("before") == pytest.approx([0.01] * 3)


def test_tables(results):
    table = recorded("036", folder=results).table()
    assert table.columns.tolist() == ["before", "after", "times better"]
    assert table.loc["TPOT p50 (ms/token)"].tolist() == [
        pytest.approx(8.2),
        pytest.approx(4.1),
        "2.000x [2.000, 2.000]",
    ]
    assert table.loc["share of the floor (%)", "after"] == pytest.approx(1.524, abs=0.001)
    assert len(table) == len(HEADLINES) + 1


def test_provenance_is_one_line(document):
    found = Recorded.of(document)
    line = "NVIDIA H200, driver 580.1, torch 2.11.0, commit 0123456789ab, 2026-11-21T08:00:00+00:00, "
    assert found.provenance == line + "`rosecourse record --lessons 036`"
    assert "commit 0123456789ab with changes" in Recorded.of(document | {"dirty": True}).provenance
    on_cpu = Recorded.of(document | {"host": {"cpu": "a CPU", "gpu": None, "driver": None}, "commit": None})
    assert on_cpu.provenance.startswith("a CPU, torch 2.11.0, commit unknown, ")


def test_the_first_lesson_has_no_before(tmp_path):
    write(tmp_path / "cpu" / "035.json", sealed(document_of([], [steady(0.01)] * 5, "035")))
    found = recorded("035", folder=tmp_path)
    assert found.ratio() is None
    assert np.isnan(found.share_of_floor("before"))
    assert found.table()["before"].isna().all()
    assert len(found.itl("before")) == len(found.itl_along_steps("before")) == 0
    rows = beside_published("035", folder=tmp_path)
    assert rows.metric.tolist()[0] == "decode throughput"
    assert len(rows) == len(HEADLINES)
    assert beside_published("035", folder=tmp_path / "none").empty


def test_beside_the_published_figures(results):
    rows = beside_published("036", folder=results)
    assert set(rows.workload) == {"64 requests x 512 tokens, batch 64 (scheduler)"}
    tpot = rows[rows.metric == "TPOT"]
    assert tpot.gpu.tolist() == ["the author's (not named)"] * 2 + ["NVIDIA H200"] * 3
    assert tpot.source.tolist()[-2:] == ["recorded, commit 0123456789ab, 2026-11-21"] * 2
    assert tpot.statistic.tolist() == ["p50", "mean", "", "p50", "mean"]
    assert tpot["times better"].tolist() == pytest.approx([15.32 / 14.98, 15.33 / 14.97, 35.96 / 34.69, 2, 2])
    rates = rows[rows.metric == "decode throughput"]
    assert rates["times better"].tolist()[0] == pytest.approx(4292.75 / 4192.88)
    assert rates["times better"].tolist()[-1] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("lesson", ["036", "038", "059", "060", "061"])
def test_without_a_recording_the_published_figures_stand_alone(tmp_path, lesson):
    rows = beside_published(lesson, folder=tmp_path)
    assert sorted(rows.after) == sorted(published(lesson).after)


# -- which file ---------------------------------------------------------------------------------------------------


def test_which_recording(results, document):
    assert recorded("038", folder=results) is None
    assert recorded("036", gpu="another", folder=results) is None
    assert recorded("036", gpu="../nvidia-h200", folder=results).gpu == "NVIDIA H200"
    assert recorded("036", folder=results / "none") is None
    other = document | {"host": document["host"] | {"gpu": "A GPU"}}
    write(results / "a-gpu" / "036.json", sealed(other))
    assert recorded_gpus("036", results) == ["nvidia-h200", "a-gpu"]  # the course's own comes first
    assert recorded("036", folder=results).gpu == "NVIDIA H200"
    assert recorded("036", gpu="A GPU", folder=results).gpu == "A GPU"
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        recorded("042", folder=results)
    assert slug("NVIDIA GeForce RTX 4090 (Ti)") == "nvidia-geforce-rtx-4090-ti"


def test_the_checksum_does_not_depend_on_the_order_of_keys_or_on_spaces(tmp_path, document):
    backwards = dict(reversed(document.items()))
    path = tmp_path / "036.json"
    path.write_text(json.dumps(backwards, indent=3))
    assert load(path, "036").document == document
    assert canonical(document) == canonical(backwards)


def refused(path, message, lesson="036"):
    with pytest.raises(RosecourseError) as caught:
        load(path, lesson)
    text = str(caught.value)
    assert text.startswith(f"the recorded file {path} cannot be used, ")
    assert message in text
    assert text.endswith(f": restore it from git, or record it anew with `rosecourse record --lessons {lesson}`")
    assert "\n" not in text


def test_a_damaged_file_is_refused(tmp_path, document):
    path = write(tmp_path / "036.json", document)
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path, "")
    path.write_bytes(whole.replace(b'"total_us": 16000', b'"total_us": 15000', 1))
    refused(path, "its checksum does not fit")
    path.write_bytes(whole.replace(b"a title", b"a t\xfftle"))
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
    return sealed(changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("host"), "the document has no 'host'"),
        (lambda d: d["host"].pop("driver"), "host has no 'driver'"),
        (lambda d: d.update(format=FORMAT + 1), f"its format is {FORMAT + 1}, not {FORMAT}"),
        (lambda d: d.update(lesson="038"), "it is of lesson '038'"),
        (lambda d: d.update(dirty=0), "dirty is of type int"),
        (lambda d: d.update(before={}), "before is of type dict"),
        (lambda d: d["after"][0].update(total_us=True), "total_us is of type bool"),
        (lambda d: d["after"][0].update(total_us=1.5), "total_us is of type float"),
        (lambda d: d["after"][0]["tokens"][0].append("x"), "an item of an item of tokens is of type str"),
        (lambda d: d["after"][0]["moments_us"].append(10**30), ""),
        (lambda d: d["settings"].pop("max_batch_size"), "settings has no 'max_batch_size'"),
        (lambda d: d["settings"].update(benchmark=None), "benchmark is of type NoneType"),
        (lambda d: d["after"][0].update(decode_bytes=10**400), "decode_bytes is a number of 401 digits"),
        (lambda d: d["after"][0].update(preemptions=2**63), "preemptions is a number of 19 digits"),
        (lambda d: d.update(format=True), "its format is True, not 1"),
        (lambda d: d["after"].pop(), "the runs are not in pairs"),
        (lambda d: d.update(before=[]), "the runs are not in pairs"),
        (lambda d: d.update(before=[], after=[]), "the runs are not in pairs"),
        (lambda d: d["after"][0].update(decode_us=0), "a run without requests, or without time"),
        (lambda d: d["after"][0].update(submitted_us=[], admitted_us=[], tokens=[]), "a run without requests"),
        (lambda d: d["after"][0]["moments_us"].__setitem__(1, -1), "without time"),
        (lambda d: d.update(copy_bytes_per_second=0.0), "the copy bandwidth is not positive"),
        (lambda d: d["after"][0].update(submitted_us=[0]), "zip()"),
        (lambda d: d["after"][0].update(tokens=[[0, 5], [0, 4]]), "at moments that are not there"),
        (lambda d: d["after"][0].update(tokens=[[-1, 2], [0, 4]]), "at moments that are not there"),
        (lambda d: d["after"][0].update(tokens=[[], [0, 4]]), "at moments that are not there"),
        (lambda d: d["after"][0].update(tokens=[[0], [0, 4]]), "zip()"),
    ],
)
def test_a_file_of_another_form_is_refused_though_its_checksum_fits(tmp_path, document, change, message):
    refused(write(tmp_path / "036.json", changed(document, change)), message)


def test_a_file_of_another_lesson_is_refused(results):
    path = (results / "nvidia-h200" / "036.json").rename(results / "nvidia-h200" / "038.json")
    refused(path, "it is of lesson '036'", "038")
    with pytest.raises(RosecourseError, match=r"038\.json cannot be used"):
        recorded("038", folder=results)


def test_a_file_cut_or_changed_anywhere_is_never_half_read(results, document):
    path = results / "nvidia-h200" / "036.json"
    whole = path.read_bytes()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 255))
    def damage(place, byte):
        path.write_bytes(whole[:place])
        refused(path, "")
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        try:
            assert load(path, "036").document == document  # the same byte, or a space
        except RosecourseError as error:
            refused(path, "")
            assert str(path) in str(error)  # noqa: PT017 (either end is right)

    damage()
