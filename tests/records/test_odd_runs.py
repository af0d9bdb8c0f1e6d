"""A run that stands out is said, with the ratio of its round; others are not."""

from rosecourse.records.comparisons import recorded_comparison
from rosecourse.records.odd_runs import odd_loads, odd_runs, slow_runs, slow_runs_of_all
from tests.support.recordings import STEPS, document_of, mixed, steady, twice_as_fast, write_recording


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


def write_traffic(folder, places, prefill_seconds=0.001):
    """A burst, and a load under which no request is good in these rounds of 059; round 1 prefills for so long."""
    write_recording(folder / "cpu" / "D-burst.json", twice_as_fast("038", "059", "D-burst"))
    before, after = ([mixed(n * step) for step in STEPS] for n in (2, 1))
    for place in places:
        after[place] = mixed(0.2)
    after[0].stats.prefill_seconds = prefill_seconds
    write_recording(folder / "cpu" / "D-load-059.json", document_of({"038": before, "059": after}, "D-load-059"))


def test_a_first_round_with_long_prefills_under_load_is_said_with_its_reason(tmp_path):
    write_traffic(tmp_path, [0], prefill_seconds=0.003)
    said = odd_loads(folder=tmp_path)
    assert "of their side: 059 after, 0% in round 1 (median 100%), with 3 ms of prefill (median 1 ms). Where" in said
    assert "would say why" not in said
    assert said == odd_loads(["059"], folder=tmp_path)
    assert odd_loads(["060"], folder=tmp_path) == ""


def test_other_odd_rounds_under_load_are_said_without_a_reason(tmp_path):
    write_traffic(tmp_path, [1, 4])
    said = odd_loads(folder=tmp_path)
    assert said.endswith(
        ": 059 after, 0% in round 2 and 0% in round 5 (median 100%). Nothing was recorded that would say why."
    )


def test_a_round_that_is_odd_beside_a_poor_median_is_said_too(tmp_path):
    write_traffic(tmp_path, [])
    some_slow = [mixed(step) for step in STEPS]
    for run in some_slow:
        run.times[0] = mixed(0.2).times[0]
    some_slow[2] = mixed(0.2)
    rounds = {"038": [mixed(2 * step) for step in STEPS], "059": some_slow}
    write_recording(tmp_path / "cpu" / "D-load-059.json", document_of(rounds, "D-load-059"))
    assert "more than 15 percentage points below the median of their side: 059 after, 0% in round 3 (median" in (
        odd_loads(folder=tmp_path)
    )
    assert "(median 100%)" not in odd_loads(folder=tmp_path)


def test_rounds_under_load_that_are_alike_are_not_said(tmp_path):
    write_traffic(tmp_path, [])
    assert odd_loads(folder=tmp_path) == ""
    write_traffic(tmp_path, range(5))  # no request of any round is good
    assert odd_loads(folder=tmp_path) == ""


def test_runs_that_took_far_longer_than_others_of_their_side_are_counted(tmp_path):
    before, after = ([steady(n * step) for step in STEPS] for n in (2, 1))
    after[3] = steady(0.0095)
    write_recording(tmp_path / "cpu" / "A.json", document_of({"035": before, "036": after}))
    one = recorded_comparison("036", "A", folder=tmp_path)
    assert slow_runs({"A": one}) == (
        "Runs that took more than 2 times the median of their side: A, 0 of 5 before and 1 of 5 after. They are kept, "
        "and nothing was recorded that would say why."
    )
    assert slow_runs_of_all(["A", "C"], folder=tmp_path) == (
        "Runs that took more than 2 times the median of their side: 036: A, 0 of 5 before and 1 of 5 after. Nothing "
        "was recorded that would say why."
    )


def test_runs_that_all_took_about_as_long_are_not_counted(tmp_path):
    write_recording(tmp_path / "cpu" / "A.json", document(0.2))
    assert slow_runs({"A": recorded_comparison("036", "A", folder=tmp_path)}) == ""
