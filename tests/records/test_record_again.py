"""Recording once more: what is there stays, what breaks leaves the old file, and rounds go on where they ended."""

import shlex

import pytest
import torch

from rosecourse import KVCacheExhausted
from rosecourse.records.comparisons import recorded_comparison, recorded_ladder
from tests.support.commands import record
from tests.support.record_command import CLEAN, RUNGS, SMALL, spy, written

ROUND = len(RUNGS) / 6  # minutes, where a run takes ten seconds
ALL = 6 * len(RUNGS)  # runs: a round that warms up, and five that count

pytestmark = pytest.mark.usefixtures("source")


# -- again --------------------------------------------------------------------------------------------------------


def test_what_is_recorded_is_not_recorded_again(tmp_path, monkeypatch, capsys, source):
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    path = tmp_path / "cpu" / "A.json"
    order = spy(monkeypatch)

    def runs(*more):
        order.clear()
        assert record.main([*argv, *more]) == 0
        return len(order)

    assert runs() == ALL
    first = path.read_bytes()
    capsys.readouterr()
    assert runs() == 0
    assert capsys.readouterr().out == "A: is there, of this commit and settings (--force records it anew)\n"
    assert path.read_bytes() == first
    assert runs("--force") == ALL
    assert path.read_bytes() != first
    assert runs("--prompt", "Emma") == ALL  # other settings
    assert runs("--prompt", "Emma") == 0
    path.write_bytes(path.read_bytes()[:-100])  # damaged
    assert runs("--prompt", "Emma") == ALL
    assert runs("--rounds", "6") == ALL + len(RUNGS)
    for change in ({"versions": {"torch": "1"}}, {"commit": "d" * 40}):
        source.update(CLEAN | change)
        assert [runs(), runs()] == [ALL, 0], change
    for change in ({"dirty": True}, {"dirty": None}, {"commit": None}):  # what may have changed again, unseen
        source.update(CLEAN | change)
        assert [runs(), runs()] == [ALL, ALL], change


def test_a_broken_run_leaves_the_old_file_and_those_before_it(tmp_path, monkeypatch, capsys):
    argv = ["--workloads", "C,A", *SMALL, "--out", str(tmp_path), "--force"]
    assert record.main(argv) == 0
    old = (tmp_path / "cpu" / "A.json").read_bytes()

    def break_later(error):
        def change(run, number):
            if number == len(RUNGS) + 3:  # in the first round that counts
                raise error

        return change

    for error, code in (
        (KVCacheExhausted("no blocks"), 2),
        (torch.OutOfMemoryError("full"), 2),
        (KeyboardInterrupt(), 130),
    ):
        spy(monkeypatch, break_later(error))
        capsys.readouterr()
        assert record.main(argv) == code
        assert capsys.readouterr().err.count("\n") == (code == 2)
        assert sorted(written(tmp_path)) == ["cpu/A.json", "cpu/C.json"]
        assert (tmp_path / "cpu" / "A.json").read_bytes() == old


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, capsys):
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path), "--force"]
    assert record.main(argv) == 0
    old = written(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert record.main(argv) == 2
    assert capsys.readouterr().err == "rosecourse record: error: [Errno 28] No space left on device\n"
    assert written(tmp_path) == old


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "code"), [("float32", 2), ("bfloat16", 0)])
def test_other_tokens_are_an_error_in_float32_and_said_in_less(tmp_path, monkeypatch, capsys, dtype, code):
    def other(run, number):
        if number == len(RUNGS) + 1:
            run.completions[1][2] += 1

    spy(monkeypatch, other)
    assert record.main(["--workloads", "A", *SMALL, "--dtype", dtype, "--out", str(tmp_path)]) == code
    captured = capsys.readouterr()
    if code:
        assert f"workload A, rung {RUNGS[-1]}: the tokens differ, the times mean nothing" in captured.err
        assert written(tmp_path) == {}
    else:
        assert captured.out.splitlines()[0] == "A: 5 rounds, some tokens differ (rounding)"
        assert recorded_comparison("036", folder=tmp_path).same_tokens is False


# -- by whole rounds ----------------------------------------------------------------------------------------------


def test_a_recording_ends_before_a_round_that_would_not_fit_and_goes_on_with_it(tmp_path, monkeypatch, capsys, clock):
    """Of rungs of ten seconds: 3.5 times as long as a round has room for a warm-up and two more."""
    argv = ["--workloads", "A,C", *SMALL, "--minutes", str(3.5 * ROUND), "--out", str(tmp_path)]
    order, path = spy(monkeypatch, clock), tmp_path / "cpu" / "A.json"
    backwards = RUNGS[::-1]
    assert record.main(argv) == 0
    assert order == [*RUNGS, *backwards, *RUNGS]
    assert list(written(tmp_path)) == ["cpu/A.partial.json"]
    assert recorded_ladder("A", folder=tmp_path) is None
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"A: 2 of 5 rounds are there, each takes {ROUND:.1f} minutes"
    words = shlex.split(said[1].removeprefix("To go on: "))
    assert words[:2] == ["rosecourse", "record"]
    assert sorted(words[2:]) == sorted(argv)
    assert len(said) == 2  # C has not begun
    order.clear()
    assert record.main(words[2:]) == 0
    assert order == [*RUNGS, *backwards, *RUNGS]  # it warms up once, then come rounds 3 and 4
    assert not path.exists()
    order.clear()
    assert record.main([*argv, "--workloads", "A"]) == 0
    assert order == [*RUNGS, *backwards]
    assert list(written(tmp_path)) == ["cpu/A.json"]
    found = recorded_ladder("A", folder=tmp_path)
    each = {rung.name: [run.stats.preemptions for run in rung.runs] for rung in found.rungs}
    n = len(RUNGS)
    assert each["035"] == [2 * n, 2 * n + 1, 2 * n, 2 * n + 1, 2 * n]  # each call counts its runs from 1
    assert each[RUNGS[-1]] == [n + 1, 3 * n, n + 1, 3 * n, n + 1]
    assert found.recording.document["rounds"] == found.conditions.rounds == 5


def test_no_round_begins_where_a_warm_up_and_a_round_do_not_fit(tmp_path, monkeypatch, capsys, clock):
    order = spy(monkeypatch, clock)
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    assert record.main([*argv, "--minutes", str(2.1 * ROUND)]) == 0
    assert len(order) == 2 * len(RUNGS)
    order.clear()
    assert record.main([*argv, "--minutes", str(1.9 * ROUND)]) == 0
    assert order == []
    assert f"A: 1 of 5 rounds are there, each takes {ROUND:.1f} minutes" in capsys.readouterr().out


def test_rounds_of_another_source_machine_or_settings_are_measured_anew(tmp_path, monkeypatch, clock, source):
    order = spy(monkeypatch, clock)
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    path = tmp_path / "cpu" / "A.partial.json"
    assert record.main([*argv, "--minutes", str(2.1 * ROUND)]) == 0
    begun = path.read_bytes()

    def rounds(*more):
        path.write_bytes(begun)
        (tmp_path / "cpu" / "A.json").unlink(missing_ok=True)
        order.clear()
        assert record.main([*argv, *more]) == 0
        assert not path.exists()
        return len(order) // len(RUNGS)

    assert rounds() == 5  # a warm-up, and the four that were missing
    assert rounds("--force") == 6
    assert rounds("--prompt", "Emma") == 6
    assert rounds("--rounds", "6") == 7
    begun = begun[:-100]  # damaged
    assert rounds() == 6
    for change in ({"commit": "d" * 40}, {"versions": {"torch": "1"}}, {"dirty": True}):
        source.update(CLEAN)
        path.unlink(missing_ok=True)
        (tmp_path / "cpu" / "A.json").unlink()
        assert record.main([*argv, "--minutes", str(2.1 * ROUND)]) == 0
        begun = path.read_bytes()
        source.update(CLEAN | change)
        assert rounds() == 6, change


def test_later_rounds_must_make_the_tokens_of_the_first(tmp_path, monkeypatch, capsys, clock):
    spy(monkeypatch, clock)
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    assert record.main([*argv, "--minutes", str(2.1 * ROUND)]) == 0

    def other(run, number):
        run.completions[0][0] += 1  # in every run: they agree with each other

    spy(monkeypatch, other)
    assert record.main(argv) == 2
    assert "workload A, rung 035: the tokens differ" in capsys.readouterr().err
