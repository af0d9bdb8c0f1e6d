"""Progress: stored in my/ alone, by whoever works there, merged, and never in the way of a lesson."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from types import SimpleNamespace

import pytest
from filelock import FileLock

from rosecourse.desk import noting
from rosecourse.desk.finish import finish
from rosecourse.desk.noting import note_built, note_found, note_race, note_read
from rosecourse.desk.places import desk_here
from rosecourse.desk.progress import Done, Progress, RaceRun, my_progress, progress_in
from rosecourse.desk.status import my_status, status_of
from rosecourse.errors import LessonError
from tests.desk.conftest import write_notebook
from tests.support.commands import lab

TODAY = "2026-05-04"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """It is TODAY: midnight may strike within a test."""
    monkeypatch.setattr(noting, "date", SimpleNamespace(today=lambda: date.fromisoformat(TODAY)))


def note_all(number):
    note_read(number)
    note_built(number)
    note_race(number, "2.00x [1.90, 2.10]")
    note_found(number)


def test_what_is_done_at_the_desk_is_stored(desk):
    note_all("038")
    done = Done(TODAY, TODAY, TODAY, RaceRun("2.00x [1.90, 2.10]", TODAY))
    assert progress_in(desk) == my_progress() == Progress({"038": done})
    assert my_progress().of("036") == Done()


@pytest.mark.parametrize("place", [".", "notebooks", "elsewhere/my"])
def test_nothing_is_stored_elsewhere(root, place, monkeypatch):
    (root / "my").mkdir()
    (root / "elsewhere" / "my").mkdir(parents=True)
    monkeypatch.chdir(root / place)
    note_all("038")
    assert finish("038").kept is False
    assert desk_here() is None
    assert my_progress() == Progress()
    assert [path.name for path in root.rglob("*progress*")] == []


def test_a_folder_that_is_gone_is_no_desk(desk):
    os.rmdir(desk)
    note_all("038")
    assert desk_here() is None


def test_the_first_date_and_the_last_race_stay(desk, monkeypatch):
    """Not the best race: of several it would be a lucky one."""
    for day, said in (("2026-02-02", "2x"), ("2026-03-03", "3x"), ("2026-04-04", "2x"), ("2026-04-04", "1x")):
        monkeypatch.setattr(noting, "_today", lambda day=day: day)
        note_built("038")
        note_race("038", said)
    assert my_progress().of("038") == Done(built="2026-02-02", race=RaceRun("1x", "2026-04-04"))


def test_a_race_counts_when_the_part_has_passed(desk):
    note_race("038", "9x")
    assert my_progress().of("038").race is None
    note_built("038")
    note_race("038", "2x")
    assert my_progress().of("038").race.said == "2x"


def test_both_together_in_any_order():
    one = Done("2026-01-02", "", "2026-01-05", RaceRun("2x", "2026-01-01"))
    other = Done("2026-01-01", "2026-01-03", "", RaceRun("1x", "2026-01-02"))
    both = Done("2026-01-01", "2026-01-03", "2026-01-05", other.race)
    assert one.and_also(other) == other.and_also(one) == both
    assert both.and_also(one) == both
    assert Done().and_also(one) == one


def test_two_notebooks_that_write_at_the_same_time_lose_nothing(desk):
    numbers = [f"{n:03}" for n in range(60)]
    with ThreadPoolExecutor(4) as notebooks:  # each call has a lock of its own, as each process has
        list(notebooks.map(note_read, numbers))
    assert sorted(my_progress().lessons) == numbers
    assert [path.name for path in desk.glob("*.tmp")] == []


DAMAGES = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"lessons": 3}',
    b'{"lessons": {"038": {"read": "yesterday"}}}',
    b'{"lessons": {"038": {"read": 3}}}',
    b'{"lessons": {"038": {"race": {}}}}',
    b'{"lessons": {"038": 3}}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_file_is_set_aside_with_a_line(desk, damage, capsys):
    (desk / "progress.json").write_bytes(damage)
    note_read("038")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    (aside,) = desk.glob("progress.damaged.*.json")
    assert said == f"my/progress.json is damaged. It is {aside.name} now, and your progress begins anew.\n"
    assert aside.read_bytes() == damage
    assert my_progress() == Progress({"038": Done(read=TODAY)})
    assert capsys.readouterr().err == ""


def test_a_file_that_an_older_course_wrote_lacks_what_is_new(desk):
    (desk / "progress.json").write_text(json.dumps({"lessons": {"038": {"read": "2026-01-01"}}}))
    assert my_progress().of("038") == Done(read="2026-01-01")


def test_what_cannot_be_stored_costs_a_line_and_no_lesson(desk, capsys, monkeypatch):
    (desk / "progress.json").mkdir()
    note_read("038")
    assert my_progress() == Progress()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Your progress cannot be stored in my/progress.json: ")
    assert second.startswith("Your progress cannot be read: ")
    monkeypatch.setattr(noting, "PATIENCE", 0.01)
    with FileLock(desk / noting.LOCK):
        note_read("038")
    assert capsys.readouterr().err.count("\n") == 1


# -- what is shown ------------------------------------------------------------------------------------------------


def test_the_end_of_a_lesson_says_what_is_still_to_do(desk):
    assert str(finish("038")) == (
        "The end of lesson 038, batched KV append. Still to do: pass its check, race your part, find its bug."
    )
    assert my_progress().of("038").read == TODAY
    assert finish("038")._repr_html_() == f"<p>{finish('038')}</p>"
    note_built("038")
    assert str(finish("038")).endswith(" Still to do: race your part, find its bug.")
    note_all("038")
    assert str(finish("038")) == "The end of lesson 038, batched KV append. You have done all of it. ✓"
    assert str(finish("035")).endswith("You have done all of it. ✓")  # there is nothing to build
    with pytest.raises(LessonError, match="there is no lesson '999'"):
        finish("999")


def test_the_table_shows_what_is_done(desk):
    note_all("036")
    note_read("038")
    status = my_status()
    assert status.rows() == [
        ["036 Lesson 036", "✓", "✓", f"2.00x [1.90, 2.10] ({TODAY})", "✓"],
        ["038 Lesson 038", "✓", "·", "·", "·"],
    ]
    assert status.summary() == "2 of 2 lessons read, 1 of 2 parts built, 1 of 2 bugs found."
    assert "| [036 Lesson 036](036_tables.ipynb) |" in status._repr_markdown_()
    assert str(status).splitlines()[1].split() == f"036 Lesson 036 ✓ ✓ 2.00x [1.90, 2.10] ({TODAY}) ✓".split()


def test_the_table_says_what_is_next(desk):
    note_read("036")
    assert my_status().summary().endswith(" Next: 038, Lesson 038.")
    assert my_status()._repr_markdown_().endswith(" Next: [038, Lesson 038](038_append.ipynb).")


def test_a_race_that_needs_a_gpu_is_not_to_be_done_without(desk):
    write_notebook(desk.parent / "notebooks" / "061_kernel.ipynb", "c = 1")
    assert my_status().rows()[-1] == ["061 Lesson 061", "·", "·", "on a GPU", "·"]
    assert "race your part on a GPU," in str(finish("061"))


def test_the_page_shows_nothing_where_nothing_is_kept(root, monkeypatch):
    """As in the tests of the notebooks, whatever is stored beside them."""
    (root / "my").mkdir()
    monkeypatch.chdir(root / "my")
    note_all("036")
    monkeypatch.chdir(root / "notebooks")
    status = my_status()
    assert {cell for row in status.rows() for cell in row[1:]} == {"·"}
    assert status.summary().startswith("Progress is kept for your own copy of the notebooks, in my/")


def test_status_on_the_terminal(desk, capsys, monkeypatch):
    note_all("036")
    for place in (desk, desk.parent):
        monkeypatch.chdir(place)
        assert lab.main(["--status"]) == 0
        assert capsys.readouterr().out == f"{status_of(desk.parent)}\n"
    monkeypatch.chdir("/")
    assert lab.main(["--status"]) == 2
    assert capsys.readouterr().err.startswith("rosecourse lab: error: / is not in the course's repository")
