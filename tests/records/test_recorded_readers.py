"""Recordings that hold the readers' times, and say who read."""

import json
import random
from dataclasses import replace

import pytest

from rosecourse import LESSONS, ConfigError, RosecourseError
from rosecourse.lessons.workloads import ARTICLES, C_ASYNCIO, C_ONE, C_THREADS, WITH_STEPS, A, C, name_of_steps
from rosecourse.measure.metrics import per_request
from rosecourse.measure.workload import RUNNERS, run_streaming
from rosecourse.records import timelines
from rosecourse.records.comparisons import recorded_comparison, recorded_ladder
from rosecourse.records.names import names_of, remedy_of, workload_in
from rosecourse.records.recordings import Recording, read_recording
from rosecourse.records.results import RESULTS
from rosecourse.records.run_json import packed_run, unpacked_run
from rosecourse.records.sealed import seal
from rosecourse.records.steps import recorded_steps
from rosecourse.records.tables import published_and_recorded
from tests.support.commands import record
from tests.support.record_command import RUNGS, SMALL, spy, written
from tests.support.recordings import document_of, run_of, steady, steps_document, twice_as_fast, write_recording

READ = (C_ONE, C_THREADS, C_ASYNCIO)
OF_READERS = ("reader_itl", "delay")


def read_by(run, late=0.0003):
    """The run, whose readers had each token so many seconds late."""
    for times in run.times:
        times.read = [moment + late for moment in times.tokens]
    return run


def by_json(packed):
    return unpacked_run(json.loads(json.dumps(packed)))


# -- a run --------------------------------------------------------------------------------------------------------


def test_readers_times_come_back_to_the_microsecond():
    rng = random.Random(0)
    for _ in range(50):
        run = run_of([sorted(rng.uniform(0, 1) for _ in range(rng.randint(1, 30))) for _ in range(5)])
        for times in run.times:
            for moment in times.tokens:
                times.read.append(max([moment, *times.read[-1:]]) + rng.choice([0, rng.uniform(0, 0.1)]))
        found = by_json(packed_run(run, 5))
        for was, now in zip(run.times, found.times, strict=True):
            assert now.read == pytest.approx([moment - run.start for moment in was.read], abs=1e-6)
        raw, again = per_request([run.times]), per_request([found.times])
        for name, values in raw.items():
            assert again[name] == pytest.approx(values, abs=2e-6), name


def test_a_request_has_the_first_moment_and_then_the_gaps():
    run = run_of([[0.001, 0.002], [0.001, 0.002]])
    run.times[0].read = [run.start + 0.0015, run.start + 0.0025]
    run.times[1].read = [run.start + 0.002, run.start + 0.002]
    packed = packed_run(run, 5)
    assert packed["read_us"] == [[1500, 1000], [2000, 0]]


def test_what_one_reader_has_at_one_moment_is_stored_once():
    """Two requests that go together, one that has its own times, and one with the times of the first."""
    run = read_by(run_of([[0.001, 0.002], [0.001, 0.002], [0.002, 0.004], [0.001, 0.002]]))
    packed = packed_run(run, 5)
    assert packed["read_us"] == [[1300, 1000], [], [2300, 2000], [1300, 1000]]
    found = by_json(packed)
    assert [times.read for times in found.times] == [
        pytest.approx([moment - run.start for moment in times.read]) for times in run.times
    ]


def test_a_run_that_nobody_streamed_has_none_and_the_same_figures_as_ever():
    packed = packed_run(steady(0.01), 5)
    assert "read_us" not in packed
    found = by_json(packed)
    assert [times.read for times in found.times] == [[], []]
    older, newer = per_request([found.times]), per_request([by_json(packed_run(read_by(steady(0.01)), 5)).times])
    assert [older[name] for name in OF_READERS] == [[], []]
    assert {name: older[name] for name in older if name not in OF_READERS} == {
        name: newer[name] for name in newer if name not in OF_READERS
    }


REFUSED = "a reader did not have each token once, after it was there"


@pytest.mark.parametrize(
    ("read_us", "message"),
    [
        ({}, "read_us is of type dict"),
        (None, "read_us is of type NoneType"),
        ([1, 2], "an item of read_us is of type int"),
        ([[1.5] * 4, [1] * 4], "an item of an item of read_us is of type float"),
        ([[True] * 4, [1] * 4], "an item of an item of read_us is of type bool"),
        ([[10300, 10000, 10000, 10**30]] * 2, "an item of an item of read_us is a number of 31 digits"),
        ([[10300, 10000, 10000, 10000]], "zip()"),  # of one request only
        ([[10300, 10000, 10000, 10000]] * 3, "zip()"),
        ([[], [10300, 10000, 10000, 10000]], REFUSED),  # there is no request before the first
        ([[10300, 10000, 10000], []], REFUSED),
        ([[], []], REFUSED),
        ([[10300, 10000, 10000]] * 2, REFUSED),  # a token that was lost
        ([[10300, 10000, 10000, 10000, 0]] * 2, REFUSED),  # one that came twice
        ([[20300, -1, 10000, 10000]] * 2, REFUSED),  # out of order
        ([[9999, 10000, 10000, 10000]] * 2, REFUSED),  # before it was there
        ([[-1, 10**6, 10000, 10000]] * 2, REFUSED),
        ([[2**63 - 1, 1, 0, 0]] * 2, REFUSED),  # a sum that no clock shows
        ([[2**62] * 4] * 2, REFUSED),
    ],
)
def test_moments_that_no_reader_can_have_had_are_refused(tmp_path, read_us, message):
    document = document_of({"035": [read_by(steady(0.01))] * 5, "036": [read_by(steady(0.01))] * 5})
    assert len(Recording.of(document).rungs["036"].values("delay")) == 5 * 8
    document["rungs"]["036"][2]["read_us"] = read_us
    path = write_recording(tmp_path / "A.json", seal(document))
    with pytest.raises(RosecourseError) as caught:
        read_recording(path, "A")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# -- a workload ---------------------------------------------------------------------------------------------------


def test_who_reads_is_shown_where_it_is_not_the_articles_reader():
    assert str(C) == "128 requests x 128 tokens, batch 128 (streaming)"
    assert [str(work) for work in READ] == [
        f"128 requests x 128 tokens, batch 128 (streaming, readers: {way})" for way in ("one", "threads", "asyncio")
    ]


def test_the_readers_change_no_decode_step():
    assert {name: name_of_steps(work) for name, work in ARTICLES.items()} == {
        name: name for name in WITH_STEPS
    } | dict.fromkeys(("C-one", "C-threads", "C-asyncio"), "C")
    assert name_of_steps(replace(C_ONE, name="mine", max_batch_size=4)) == "mine"
    with pytest.raises(ConfigError, match=r"there is no record of the steps of 'C-one': give one of A, B, C, E, F$"):
        recorded_steps("C-one")


def test_timelines_of_a_lesson_about_readers_are_those_of_its_steps(tmp_path, monkeypatch):
    write_recording(tmp_path / "cpu" / "C.steps.json", steps_document(workload="C"))
    monkeypatch.setattr(timelines, "lesson_of", lambda number: replace(LESSONS[2], workload=C_ONE))
    assert list(timelines.recorded_timelines("038", folder=tmp_path)) == ["before", "after"]
    monkeypatch.setattr(timelines, "lesson_of", lambda number: replace(LESSONS[2], workload=A))
    assert timelines.recorded_timelines("038", folder=tmp_path) is None


def test_names_of_files():
    for name in names_of("C-one"):
        assert workload_in(name) == "C-one"
    assert remedy_of("C-one-from-061") == "rosecourse record --workloads C-one --from 061"


# -- a recording --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "readers"), [("C", "one"), ("C-one", "threads"), ("C-one-from-061", "sequential")])
def test_a_recording_of_other_readers_is_refused(tmp_path, name, readers):
    document = document_of({"061": [steady(0.01)] * 5, "062": [steady(0.01)] * 5}, workload_in(name))
    path = tmp_path / "cpu" / f"{name}.json"
    document |= {"workload": name}
    write_recording(path, seal(document))
    assert list(read_recording(path, name).rungs) == ["061", "062"]
    write_recording(path, seal(document | {"settings": document["settings"] | {"readers": readers}}))
    own = ARTICLES[workload_in(name)].readers
    told = f"its readers are '{readers}', those of workload {workload_in(name)} are '{own}'"
    with pytest.raises(RosecourseError, match=told):
        read_recording(path, name)
    write_recording(path, seal(document | {"settings": document["settings"] | {"readers": 1}}))
    with pytest.raises(RosecourseError, match="readers is of type int"):
        read_recording(path, name)


def test_a_file_that_does_not_say_who_read_is_of_the_sequential_reader(tmp_path):
    """As all were before there were others."""
    for work in (C, C_ONE):
        document = twice_as_fast(workload=work.name)
        del document["settings"]["readers"]
        path = write_recording(tmp_path / "cpu" / f"{work.name}.json", seal(document))
        if work is C:
            assert list(read_recording(path, work.name).rungs) == ["035", "036"]
        else:
            with pytest.raises(
                RosecourseError, match="its readers are 'sequential', those of workload C-one are 'one'"
            ):
                read_recording(path, work.name)


@pytest.mark.parametrize("name", ["B", "C"])
def test_recordings_without_readers_are_found_and_have_no_figures_of_them(name):
    found = recorded_ladder(name, folder=RESULTS)
    for rung in found.rungs:
        assert rung.values("reader ITL") == rung.values("delay") == []
        assert rung.figure("ITL", "p99") > 0


@pytest.mark.usefixtures("source")
def test_each_way_is_recorded_in_a_file_of_its_own(tmp_path, monkeypatch, capsys):
    names = ["C", "C-one", "C-threads", "C-asyncio"]
    read = []

    def run(engine, workload):
        read.append(workload.readers)
        return run_streaming(engine, workload)

    monkeypatch.setitem(RUNNERS, "benchmark_streaming", run)
    argv = ["--workloads", ",".join(names), *SMALL, "--from", RUNGS[-2], "--out", str(tmp_path)]
    assert record.main(argv) == 0
    assert list(dict.fromkeys(read)) == [ARTICLES[name].readers for name in names]
    assert sorted(written(tmp_path)) == sorted(f"cpu/{name}-from-{RUNGS[-2]}.json" for name in names)
    for name in names:
        found = recorded_comparison(RUNGS[-1], name, folder=tmp_path)
        settings = found.document["settings"]
        assert (settings["readers"], settings["workloads"]) == (ARTICLES[name].readers, name)
        assert settings["benchmark"] == "benchmark_streaming"
        assert f"--workloads {name} " in found.document["command"]
        for side in found.sides:
            assert len(side.values("delay")) == 5 * 12
            assert min(side.values("delay")) > 0
    capsys.readouterr()
    assert record.main(argv) == 0
    assert capsys.readouterr().out.count("is there, of this commit and settings") == 4


@pytest.mark.usefixtures("source")
def test_a_recording_in_one_mode_is_never_taken_for_one_in_another(tmp_path, monkeypatch):
    """The same file under the other's name, its workload's name changed: it is recorded anew."""
    argv = [*SMALL, "--from", RUNGS[-2], "--out", str(tmp_path)]
    assert record.main(["--workloads", "C", *argv]) == 0
    one, other = (tmp_path / "cpu" / f"{name}-from-{RUNGS[-2]}.json" for name in ("C", "C-one"))
    document = json.loads(one.read_text())
    renamed = document["settings"] | {"workloads": "C-one"}
    told = document["command"].replace("--workloads C ", "--workloads C-one ")
    forged = seal(document | {"workload": other.stem, "settings": renamed, "command": told})
    write_recording(other, forged)
    order = spy(monkeypatch, benchmark="benchmark_streaming")
    assert record.main(["--workloads", "C-one", *argv]) == 0
    assert len(order) == 2 * 6
    assert json.loads(other.read_text())["settings"]["readers"] == "one"


def test_the_caption_of_a_table_names_the_readers(tmp_path, monkeypatch):
    write_recording(tmp_path / "cpu" / "C-one.json", twice_as_fast(workload="C-one"))
    monkeypatch.setattr(
        "rosecourse.records.tables.recorded_comparison",
        lambda *_, **__: recorded_comparison("036", "C-one", None, tmp_path),
    )
    caption = published_and_recorded("036", folder=tmp_path).attrs["caption"]
    assert "batch 128 (streaming, readers: one)" in caption
