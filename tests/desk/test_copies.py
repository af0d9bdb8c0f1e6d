"""The learner's copy of the notebooks: made once, renewed while nothing is written in it, never lost."""

import json
import re
from functools import partial
from types import SimpleNamespace

import pytest

from rosecourse.desk.copies import LEFT, MADE_FROM, renew, reset
from rosecourse.errors import LessonError
from tests.desk.conftest import write_notebook
from tests.support.commands import desk as command

NAMES = ["000_start_here.ipynb", "036_tables.ipynb", "038_append.ipynb"]


@pytest.fixture
def copies(root):
    """The copies of a repository, made."""
    made = SimpleNamespace(originals=root / "notebooks", folder=root / "my")
    made.renew, made.reset = partial(renew, root), partial(reset, root)
    made.first = made.renew()
    return made


def texts(folder):
    return {path.name: path.read_text() for path in folder.glob("*.ipynb")}


def rerun(path):
    """A notebook as Jupyter leaves it: other outputs, and an empty cell at the end."""
    document = json.loads(path.read_text())
    for number, cell in enumerate(document["cells"][1:], start=1):
        cell |= {"outputs": [{"text": "mine"}], "execution_count": number, "source": cell["source"].splitlines(True)}
    document["cells"].append({"cell_type": "code", "source": [], "outputs": [], "metadata": {"scrolled": True}})
    path.write_text(json.dumps(document, indent=1))


def test_copy_is_made_once_and_new_lessons_are_added(copies):
    assert copies.first == ["my/ is your copy of the notebooks: work there, and git leaves it alone"]
    assert sorted(texts(copies.folder)) == NAMES
    assert texts(copies.folder) == texts(copies.originals)
    times = [path.stat().st_mtime_ns for path in sorted(copies.folder.glob("*.ipynb"))]
    write_notebook(copies.originals / "scratch.ipynb", "x")  # no lesson
    assert copies.renew() == []
    assert times == [path.stat().st_mtime_ns for path in sorted(copies.folder.glob("*.ipynb"))]  # nothing is rewritten
    (copies.folder / NAMES[1]).unlink()
    write_notebook(copies.originals / "059_rollover.ipynb", "c = 1")
    assert copies.renew() == ["my/: 036, 059 new"]


@pytest.mark.parametrize("was_run", [False, True])
def test_a_copy_in_which_nothing_is_written_is_renewed(copies, was_run):
    copy = copies.folder / "038_append.ipynb"
    if was_run:
        rerun(copy)
    assert copies.renew() == []
    write_notebook(copies.originals / copy.name, "b = 2")
    assert copies.renew() == ["my/: 038 renewed, as nothing was written there"]
    assert texts(copies.folder) == texts(copies.originals)
    assert copies.renew() == []


def test_outputs_of_a_learners_run_stay_with_the_lesson(copies):
    for name, source in (("036_tables.ipynb", "a = 1"), ("038_append.ipynb", "b = 1")):
        write_notebook(copies.originals / name, source, outputs=[{"text": "the course's"}])
    rerun(copies.folder / "038_append.ipynb")
    own = texts(copies.folder)["038_append.ipynb"]
    assert copies.renew() == []
    assert texts(copies.folder)["038_append.ipynb"] == own
    assert "the course's" in texts(copies.folder)["036_tables.ipynb"]  # which nobody has run


@pytest.mark.parametrize("written", [["b = 2"], ["# a thought\nb = 1"], ["b = 1", "mine"]])
def test_what_is_written_is_kept_whatever_the_course_does(copies, written):
    copy = copies.folder / "038_append.ipynb"
    write_notebook(copy, *written)
    mine = copy.read_text()
    assert copies.renew() == []  # nothing newer
    write_notebook(copies.originals / copy.name, "b = 3")
    (line,) = copies.renew()
    assert line == (f"my/: 038 {LEFT}; `make reset LESSON=038` brings the course's and keeps yours beside it")
    assert copy.read_text() == mine
    assert copies.renew() == [line]  # it still has


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 3}', "[" * 100_000, None], ids=range(6))
def test_copy_of_unknown_origin_is_not_overwritten(copies, damage):
    for made in (copies.folder / MADE_FROM).iterdir():
        made.unlink() if damage is None else made.write_text(damage)
    write_notebook(copies.folder / "036_tables.ipynb", "mine")
    write_notebook(copies.originals / "038_append.ipynb", "newer")  # its copy is the course's, but who knows?
    before = texts(copies.folder)
    (alone,) = copies.renew()
    assert alone.startswith(f"my/: 036, 038 {LEFT}; `make reset")
    assert texts(copies.folder) == before
    # What is as the course has it is known again.
    write_notebook(copies.originals / "000_start_here.ipynb", "a new map")
    assert copies.renew()[0] == "my/: 000 renewed, as nothing was written there"


@pytest.mark.parametrize("damage", ["", "not JSON", '{"cells": 1}', '{"cells": [3]}', '{"cells": [{"source": 3}]}'])
def test_a_damaged_copy_is_the_learners(copies, damage):
    copy = copies.folder / "038_append.ipynb"
    copy.write_text(damage)
    write_notebook(copies.originals / copy.name, "b = 2")
    assert "left alone" in copies.renew()[0]
    assert copy.read_text() == damage


def test_reset_brings_a_lesson_back_and_keeps_the_old_one(copies):
    copy = copies.folder / "038_append.ipynb"
    for number, mine in enumerate(("first", "second", "third"), 1):
        write_notebook(copy, mine)
        kept = re.fullmatch(
            r"my/038_append.ipynb is as the course has it; the old one is my/(.*), and your .*", copies.reset("038")
        )
        assert kept[1] == f"038_yours_{number}.ipynb"
        assert f'"{mine}"' in (copies.folder / kept[1]).read_text()
        assert copy.read_text() == (copies.originals / copy.name).read_text()
    assert copies.renew() == []  # the old ones are nobody's copies
    assert [path.name for path in copies.folder.iterdir() if path.suffix == ".tmp"] == []
    assert copies.reset("038") == "my/038_append.ipynb is as the course has it"


def test_hunts_and_the_appendix_are_copied_renewed_and_reset_too(copies):
    hunt, page = "hunts/036_hunt.ipynb", "appendix/statistics.ipynb"
    for name in (hunt, page):
        (copies.originals / name).parent.mkdir()
        write_notebook(copies.originals / name, "a = 1")
    assert copies.renew() == ["my/: hunts/036, appendix/statistics new"]
    write_notebook(copies.originals / page, "a = 2")
    assert copies.renew() == ["my/: appendix/statistics renewed, as nothing was written there"]
    write_notebook(copies.folder / hunt, "mine")
    assert "the old one is my/hunts/036_yours_1.ipynb" in copies.reset("hunts/036")
    assert (copies.folder / hunt).read_text() == (copies.originals / hunt).read_text()
    assert copies.reset("appendix/statistics") == f"my/{page} is as the course has it"


@pytest.mark.parametrize("number", ["", "39", "999", "../x", "038_append.ipynb"])
def test_reset_of_a_lesson_that_is_not_there(copies, number):
    before = texts(copies.folder)
    with pytest.raises(LessonError, match=r"there is no lesson .*: give one of 000, 036, 038, as in `make reset"):
        copies.reset(number)
    assert texts(copies.folder) == before


# -- the command --------------------------------------------------------------------------------------------------


def test_command_makes_resets_and_ends_in_one_line(root, monkeypatch, capsys):
    (root / "tests").mkdir()
    monkeypatch.chdir(root / "tests")  # below the repository is in it
    assert command.main(["--reset", "38"]) == 0  # makes what is missing
    assert capsys.readouterr().out == "my/038_append.ipynb is as the course has it\n"
    assert command.main([]) == 0
    assert sorted(texts(root / "my")) == NAMES
    assert capsys.readouterr().out == "my/: 000, 036 new\n"
    monkeypatch.chdir(root.parent)
    for folder, flags, words in (
        (root, ["--reset", "99"], "there is no lesson '99': give one of 000, 036, 038, as in `make re"),
        (root.parent, [], f"{root.parent} is not in the course's repository: run this where notebooks/000_start_here"),
    ):
        monkeypatch.chdir(folder)
        assert command.main(flags) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"rosecourse desk: error: {words}")
        assert said.count("\n") == 1
