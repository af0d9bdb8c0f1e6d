"""The change of a lesson: folded at first, open once `check` has passed, and the same text in a saved notebook."""

import re

import pytest

from rosecourse import LessonError, lesson
from rosecourse.lab import change, check
from rosecourse.lab.checks import checking, passed
from rosecourse.lab.exercises import changing
from tests.support.right_parts import copied


@pytest.fixture(autouse=True)
def _nothing_has_passed(monkeypatch):
    fresh = passed.Passed()
    monkeypatch.setattr(checking, "PASSED", fresh)
    monkeypatch.setattr(changing, "PASSED", fresh)


class NoPart:
    """Cannot be called."""


def test_it_is_folded_until_check_has_passed():
    shown = change("059")
    assert shown._repr_html_().startswith("<details><summary>The change: open it when you have tried")
    assert not check(NoPart, "059").passed
    assert shown._repr_html_().startswith("<details><summary>")
    assert check(copied(lesson("059").after.kv_append), "059").passed
    assert shown._repr_html_().startswith("<details open><summary>")
    assert change("060")._repr_html_().startswith("<details><summary>")


def test_its_text_is_the_diff_and_what_is_saved_does_not_depend_on_the_check():
    shown = change("036")
    diff = lesson("036").diff()
    assert str(shown) == diff
    assert len(re.findall(r'<span class="g[id]">', shown._repr_html_())) >= diff.count("\n+") - 1
    folded = repr(shown)
    assert folded == f"the change of lesson 036: {diff.count(chr(10))} lines"
    changing.PASSED.add("036")
    assert repr(shown) == folded


def test_a_lesson_that_changes_nothing_is_refused():
    with pytest.raises(LessonError, match="lesson '035' replaces no part: give one of 036"):
        change("035")
    with pytest.raises(LessonError, match="no lesson '042'"):
        change("042")
