"""The lab tells of what was done: a check that passes, a race that ends, a bug that is found, and nothing else."""

from types import SimpleNamespace

import pytest

from rosecourse import lesson
from rosecourse.desk.noting import my_progress
from rosecourse.lab import check, hunt, race
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.lab.exercises import hunting, racing
from rosecourse.lab.exercises.wait_race import WaitRace
from tests.lab.test_lab_race import ladder_of

Part = lesson("038").after.kv_append


@pytest.mark.parametrize("passes", [True, False])
def test_a_check_is_told_if_it_passes(desk, passes, monkeypatch):
    verdict = Verdict("Part", "038", missing=() if passes else ("it makes too many calls",))
    monkeypatch.setattr(checking, "run_apart", lambda *_: verdict)
    assert check(Part, "038").passed == passes
    assert bool(my_progress().get("038", {}).get("built")) == passes


@pytest.fixture
def timed(monkeypatch):
    """A race of five rounds in which yours takes half the time; `race` finds no trouble with any part."""
    monkeypatch.setattr(racing, "trouble_with", lambda *_: "")
    monkeypatch.setattr(racing, "compare_ladder", lambda *_, **more: ladder_of([[2.0] * 5, [1.0] * 5, [0.5] * 5]))


def passed(monkeypatch, number):
    monkeypatch.setattr(checking, "run_apart", lambda *_: Verdict("Part", number))
    check(Part, number)


def test_a_race_is_told_with_what_yours_gained(desk, timed, small_model, monkeypatch):
    passed(monkeypatch, "038")
    race(Part, "038", small_model, rounds=5)
    assert my_progress()["038"]["race"]["said"] == "2.00x [2.00, 2.00]"


def test_of_too_few_rounds_nothing_is_told(desk, timed, small_model, monkeypatch):
    passed(monkeypatch, "038")
    race(Part, "038", small_model, rounds=4)
    assert my_progress()["038"].get("race") is None


def test_a_race_that_did_not_take_place_is_not_told(desk, small_model, monkeypatch):
    passed(monkeypatch, "038")
    monkeypatch.setattr(racing, "trouble_with", lambda *_: "it raised")
    assert race(Part, "038", small_model).trouble == "it raised"
    assert my_progress()["038"].get("race") is None


def test_where_something_is_counted_that_is_told(desk, small_model, monkeypatch):
    passed(monkeypatch, "067")
    counts = {name: SimpleNamespace(idle=idle) for name, idle in (("before", 1), ("yours", 0), ("course", 0))}
    monkeypatch.setattr(racing, "trouble_with", lambda *_: "")
    monkeypatch.setattr(racing, "_counted", lambda *_: WaitRace("067", "Part", counts, "a CPU waits for nobody"))
    race(lesson("067").after.pipeline, "067", small_model)
    assert my_progress()["067"]["race"]["said"] == "1 to 0 waits"


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
