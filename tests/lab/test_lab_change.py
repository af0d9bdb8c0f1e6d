"""The change of a lesson: folded at first, open once `check` has passed, and the same text in a saved notebook."""

import pytest

from rosecourse import LessonError, lesson
from rosecourse.lab import change
from rosecourse.lab.exercises import page


def test_change_is_folded_until_check_has_passed(monkeypatch):
    monkeypatch.setattr(page, "PASSED", set())
    shown = change("036")
    folded = repr(shown)
    assert shown._repr_html_().startswith("<details><summary>")
    page.PASSED.add("036")
    assert shown._repr_html_().startswith("<details open><summary>")
    assert change("060")._repr_html_().startswith("<details><summary>")
    assert repr(shown) == folded
    assert str(shown) == lesson("036").diff()


@pytest.mark.parametrize(("number", "says"), [("035", "lesson '035' replaces no part"), ("042", "no lesson '042'")])
def test_a_lesson_that_changes_nothing_is_refused(number, says):
    with pytest.raises(LessonError, match=says):
        change(number)
