"""Recorded runs: one tidy table, read as comparisons and ladders."""

import math

import pytest

from rosecourse import ConfigError, LessonError, RosecourseError
from rosecourse.measure.stats import NO_DIFFERENCE
from rosecourse.records.runs import recorded_comparison, recorded_ladder
from tests.support.recordings import STEPS, steady, twice_as_fast, write_recording


def test_a_comparison_has_the_figures_of_its_runs(tmp_path):
    """By hand: steps of 4 to 4.4 ms, in the median run 4.1; four tokens of two requests in four steps."""
    write_recording(tmp_path, twice_as_fast())
    found = recorded_comparison("036", folder=tmp_path)
    assert (len(found.before), len(found.after), found.pairs) == (5, 5, 5)
    assert found.row("ITL", "p50")[:2] == (pytest.approx(8.2), pytest.approx(4.1))
    assert str(found.speedup) == "2.000x [2.000, 2.000]"
    assert found.after.typical("total throughput") == pytest.approx(8 / (4 * 0.0041))
    assert list(found.after.itl_along_steps_ms) == pytest.approx([4.1] * 3)
    assert found.share_of_floor("after") == 0.1
    assert found.table().loc["share of the floor (%)", "after"] == pytest.approx(10)
    assert "commit 0123456789ab, 2026-11-21" in found.provenance


def test_the_first_lesson_has_nothing_before_it(tmp_path):
    write_recording(tmp_path, {"035": [steady(step) for step in STEPS]})
    found = recorded_comparison("035", folder=tmp_path)
    assert math.isnan(found.row("ITL")[0])
    assert [side.name for side in found.sides] == ["after"]
    assert recorded_comparison("036", folder=tmp_path) is None


def test_a_control_is_the_rung_of_most_nearly_the_same_speed(tmp_path):
    """061 is half again as fast the second time: so 063 is not faster than 062. 071 is not: so 070 is than 069."""
    steps = {"061": 5, "062": 5, "063": 4, "069": 1.2, "070": 1, "071": 1}
    rungs = {number: [steady(n * step) for step in STEPS] for number, n in steps.items()}
    twice = {"061": [steady(5 / 1.5 * step) for step in STEPS], "071": rungs["071"]}
    write_recording(tmp_path, rungs, "C", twice)
    assert recorded_comparison("063", "C", folder=tmp_path).speedup.verdict == NO_DIFFERENCE
    assert recorded_comparison("070", "C", folder=tmp_path).speedup.verdict == "faster"


def test_a_ladder_has_all_rungs_and_their_shares(tmp_path):
    rungs = {number: [steady(n * step) for step in STEPS] for number, n in (("059", 4), ("060", 2), ("061", 1))}
    write_recording(tmp_path, rungs, "B")
    ladder = recorded_ladder("B", folder=tmp_path)
    assert [one.value for one in ladder.speedups] == pytest.approx([1, 2, 4])
    assert ladder.shares_of_floor == [0.1] * 3
    assert recorded_ladder("A", folder=tmp_path) is None


def test_the_courses_own_gpu_comes_first(tmp_path):
    write_recording(tmp_path, twice_as_fast(), gpu="a-gpu")
    assert recorded_comparison("036", folder=tmp_path).pairs == 5
    write_recording(tmp_path, {n: runs[:3] for n, runs in twice_as_fast().items()})
    assert recorded_comparison("036", folder=tmp_path).pairs == 3


BAD = [  # what is wrong with the recording, words
    (lambda path: path.write_text(""), r"runs\.json or what is beside it cannot be read .*restore it from git"),
    (lambda path: path.with_name("gaps.csv").write_text(""), "restore it from git"),
    (lambda path: path.with_name("runs.json").write_text("{"), "restore it from git"),
    (lambda path: path.write_text(path.read_text()[:-1].rpartition("\n")[0]), "not the same rounds of every rung"),
]


@pytest.mark.parametrize(("spoil", "words"), BAD)
def test_a_damaged_recording_is_refused_by_what_is_wrong(tmp_path, spoil, words):
    spoil(write_recording(tmp_path, twice_as_fast()))
    with pytest.raises(RosecourseError, match=words):
        recorded_comparison("036", folder=tmp_path)
    with pytest.raises(ConfigError, match="no workload 'Z'"):
        recorded_comparison("036", "Z", folder=tmp_path)
    with pytest.raises(LessonError):
        recorded_comparison("999", folder=tmp_path)
