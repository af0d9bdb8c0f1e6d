"""A run that stands out is said, with the ratio of its round; others are not."""

from rosecourse.records.odd_runs import odd_runs
from tests.support.recordings import STEPS, document_of, steady, write_recording


def document(prefill_seconds):
    """036 beside 035, twice as fast; in the third round 035 spends so long in prefill."""
    before, after = ([steady(n * step) for step in STEPS] for n in (2, 1))
    before[2].stats.prefill_seconds = prefill_seconds
    return document_of({"035": before, "036": after})


def test_a_run_with_a_long_prefill_is_said_with_the_ratio_of_its_round(tmp_path):
    write_recording(tmp_path / "cpu" / "A.json", document(0.2))
    said = odd_runs(folder=tmp_path)
    assert said.startswith("In round 3 of 5 of the recording of 036, 035 spent 200 ms in prefill")
    assert "median is 1 ms" in said
    assert "ratio of that round alone is 2.00" in said  # of TPOT, which a prefill does not change


def test_runs_that_are_alike_are_not_said(tmp_path):
    write_recording(tmp_path / "cpu" / "A.json", document(0.005))
    assert odd_runs(folder=tmp_path) == ""


def test_without_recordings_nothing_is_said(tmp_path):
    assert odd_runs(folder=tmp_path) == ""
