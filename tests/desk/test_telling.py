"""The lab tells of what was done: a check that passes, a run, and a bug that is found."""

import pytest

from rosecourse import lesson
from rosecourse.desk.noting import my_progress, note
from rosecourse.lab import check, hunt, your_run
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.lab.exercises import hunting, own_run
from rosecourse.lab.exercises.own_run import LiveWork
from tests.support.cells import solution_of

Part = lesson("038").after.kv_append


@pytest.mark.parametrize("passes", [True, False])
def test_a_check_is_told_if_it_passes(desk, passes, monkeypatch):
    verdict = Verdict("Part", "038", missing=() if passes else ("it makes too many calls",))
    monkeypatch.setattr(checking, "run_apart", lambda *_: verdict)
    assert check(Part, "038").passed == passes
    assert bool(my_progress().get("038", {}).get("built")) == passes


def test_run_is_told_with_its_gain_once_the_part_is_built(desk, small_model, monkeypatch):
    monkeypatch.setattr(own_run, "WORK", {"038": LiveWork(requests=(2, 2), new_tokens=(4, 4))})
    monkeypatch.setattr(own_run, "PAIRS", 2)
    part = solution_of("038")
    your_run(part, "038", small_model)
    assert "run" not in my_progress().get("038", {})
    note("038", "built")
    found = your_run(part, "038", small_model)
    assert my_progress()["038"]["run"]["said"] == found.against_before.ratio("TPOT", "mean").shown(2)


def test_a_bug_is_told_when_it_is_found(desk, model, monkeypatch):
    monkeypatch.setattr(hunting, "load_model", lambda **_: model)
    found = hunt("036")
    right = {name: sorted(found._truth[name])[0] for name in found.questions}
    one = next(iter(right))
    assert not found.answer().found
    assert not found.answer(**{one: right[one]}).found
    assert my_progress() == {}
    assert found.answer(**right).found
    assert my_progress()["036"]["found"]
