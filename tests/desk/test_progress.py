"""Progress: stored in my/ alone, by whoever works there, merged, and never in the way of a lesson."""

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from types import SimpleNamespace

import pytest

from rosecourse.desk import noting
from rosecourse.desk.notebooks import desk_here
from rosecourse.desk.noting import my_progress, note
from rosecourse.desk.status import finish, my_status
from rosecourse.errors import LessonError

TODAY = "2026-05-04"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """It is TODAY: midnight may strike within a test."""
    monkeypatch.setattr(noting, "date", SimpleNamespace(today=lambda: date.fromisoformat(TODAY)))


def note_all(number):
    note(number, "read")
    note(number, "built")
    note(number, "run", "2.00x [1.90, 2.10]")
    note(number, "found")


def test_what_is_done_at_the_desk_is_stored(desk):
    note_all("038")
    run = {"said": "2.00x [1.90, 2.10]", "date": TODAY}
    done = {"read": TODAY, "built": TODAY, "found": TODAY, "run": run}
    assert my_progress() == {"038": done}
    assert (desk / noting.FILE).read_text().count("\n") == 4


def test_bug_that_is_found_in_a_folder_of_the_desk_is_stored(desk, monkeypatch):
    (desk / "hunts").mkdir()
    monkeypatch.chdir(desk / "hunts")
    note("036", "found")
    assert [path.parent for path in desk.rglob(noting.FILE)] == [desk]
    assert rows()[0][-1] == "✓"


@pytest.mark.parametrize("place", [".", "notebooks", "elsewhere/my"])
def test_nothing_is_stored_elsewhere(root, place, monkeypatch):
    (root / "my").mkdir()
    (root / "elsewhere" / "my").mkdir(parents=True)
    monkeypatch.chdir(root / place)
    note_all("038")
    finish("038")
    assert desk_here() is None
    assert my_progress() == {}
    assert [path.name for path in root.rglob("*progress*")] == []


def test_the_first_date_and_the_last_race_stay(desk, monkeypatch):
    """Not the best run: of several it would be a lucky one."""
    for day, said in (("2026-02-02", "2x"), ("2026-03-03", "3x"), ("2026-04-04", "2x"), ("2026-04-04", "1x")):
        monkeypatch.setattr(noting, "date", SimpleNamespace(today=lambda day=day: date.fromisoformat(day)))
        note("038", "built")
        note("038", "run", said)
    assert my_progress()["038"] == {"built": "2026-02-02", "run": {"said": "1x", "date": "2026-04-04"}}


def test_two_notebooks_that_write_at_the_same_time_lose_nothing(desk):
    numbers = [f"{n:03}" for n in range(60)]
    with ThreadPoolExecutor(4) as notebooks:
        list(notebooks.map(lambda number: note(number, "read"), numbers))
    assert sorted(my_progress()) == numbers


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"lesson": "038"}', b"3"])
def test_a_damaged_line_is_left_out(desk, damage):
    note("036", "read")
    with (desk / noting.FILE).open("ab") as file:
        file.write(damage + b"\n")
    note("038", "built")
    assert {number: done for number, done in my_progress().items() if done} == {
        "036": {"read": TODAY},
        "038": {"built": TODAY},
    }


def test_note_that_cannot_be_stored_costs_a_line_and_no_lesson(desk, capsys, monkeypatch):
    monkeypatch.setattr(noting, "FILE", "no/such/folder")
    note("038", "read")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Your progress cannot be stored in my/no/such/folder: ")


# -- what is shown ------------------------------------------------------------------------------------------------


def said(number, capsys):
    """What the end of a lesson says, in a line."""
    capsys.readouterr()
    finish(number)
    return " ".join(capsys.readouterr().out.split())


def test_the_end_of_a_lesson_says_what_is_still_to_do(desk, capsys):
    assert said("038", capsys) == (
        "The end of lesson 038, batched KV append. Still to do: pass its check, measure your part, find its bug."
    )
    assert my_progress()["038"]["read"] == TODAY
    note("038", "built")
    assert said("038", capsys).endswith(" Still to do: measure your part, find its bug.")
    note_all("038")
    assert said("038", capsys) == "The end of lesson 038, batched KV append. You have done all of it. ✓"
    assert said("035", capsys).endswith("You have done all of it. ✓")  # there is nothing to build
    assert said("074", capsys).endswith(" Still to do: pass its check, find its bug.")  # the page times no part
    assert said("075", capsys).endswith(" Still to do: pass its check.")
    with pytest.raises(LessonError, match="there is no lesson '999'"):
        finish("999")


def rows():
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in my_status().splitlines() if "|" in line][2:]


def test_status_has_a_row_for_each_lesson_that_is_begun(desk):
    assert my_status() == "0 of 2 lessons read, 0 parts built, 0 bugs found. Next: 036, Lesson 036."
    note_all("036")
    first = ["[036 Lesson 036](036_tables.ipynb)", "✓", "✓", f"2.00x [1.90, 2.10] ({TODAY})", "✓"]
    assert rows() == [first]
    assert my_status().endswith(" Next: 038, Lesson 038.")
    note("038", "read")
    assert rows() == [first, ["[038 Lesson 038](038_append.ipynb)", "✓", "·", "·", "·"]]
    assert my_status().endswith("\n2 of 2 lessons read, 1 parts built, 1 bugs found.")
    assert my_status()._repr_markdown_() == repr(my_status()) == str(my_status())


def test_the_page_shows_nothing_where_nothing_is_kept(root, monkeypatch, capsys):
    """As in the tests of the notebooks, whatever is stored beside them."""
    (root / "my").mkdir()
    monkeypatch.chdir(root / "my")
    note_all("036")
    monkeypatch.chdir(root / "notebooks")
    assert my_status().startswith("Progress is kept for your own copy of the notebooks, in `my/`")
    assert "Progress is kept for your own copy" in said("036", capsys)
