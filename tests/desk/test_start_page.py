"""The start page agrees with the ladder, and every lesson leads to it and to its neighbours."""

import json
import re
from pathlib import Path

import pytest

from rosecourse import LESSONS
from rosecourse.desk.notebooks import END, HUNTS, START, cells_of, heads_in, source_of
from rosecourse.desk.status import lesson_map
from rosecourse.lab.course import COURSES
from rosecourse.lessons import ASIDES
from rosecourse.pages.shared import lessons_on
from rosecourse.records.tables import workloads_table
from tests.support.recordings import twice_as_fast, write_recording
from tests.support.scripts import script

FOLDER = Path(__file__).parents[2] / "notebooks"
PAGES = {path.name[:3]: path.name for path in sorted(FOLDER.glob("0*.ipynb")) if path.name != START}
FILES = {number: name for number, name in PAGES.items() if name != END}  # the pages of lessons
PAGE_OF = {number: name for name in PAGES.values() for number in lessons_on(Path(name))}
PAGE = cells_of(FOLDER / START)
TEXT = "\n".join(source_of(cell) for cell in PAGE if cell["cell_type"] == "markdown")


def test_the_map_has_a_row_for_each_rung(tmp_path):
    write_recording(tmp_path, twice_as_fast())
    shown = lesson_map(FOLDER, tmp_path)
    header, _, *table = shown.partition("\n\n")[0].splitlines()
    lines = {row[3:6]: [cell.strip() for cell in row.split("|")[1:-1]] for row in table if "|" in row}
    rows = [lines[rung.number] for rung in LESSONS]
    known = {rung.number for rung in LESSONS}
    titles = {
        head.number: head.title for head in heads_in(FOLDER) if head.number in known
    }  # as the notebooks have them
    for aside in ASIDES:
        assert lines[aside.number][2:] == [aside.about, "", ""]
    assert {n: title.casefold() for n, title in titles.items()} == {one.number: one.title.casefold() for one in LESSONS}
    assert [row[0] for row in rows] == [f"[{n} {titles[n]}]({PAGE_OF[n]})" for n in titles]
    assert list(titles) == [rung.number for rung in LESSONS]
    assert [row[2] for row in rows] == [rung.about for rung in LESSONS]
    worth = {rung.number: row[-1] for rung, row in zip(LESSONS, rows, strict=True)}
    assert worth["035"] == ""
    assert worth["036"] == "TPOT 8.20 to 4.10 ms: 2.00x [2.00, 2.00]"
    assert worth["059"] == "ITL p99 not recorded yet"
    assert workloads_table() in shown
    assert header.endswith("recorded (NVIDIA H200) |")


@pytest.mark.parametrize("number", sorted(FILES.keys() & COURSES.keys()))
def test_the_head_says_how_long_the_exercises_take(number):
    cells = cells_of(FOLDER / FILES[number])
    (minutes,) = re.findall(r"(\d+) minutes for the exercise", source_of(cells[0]))
    each = [one for cell in cells for one in re.findall(r"· about (\d+) minutes", source_of(cell))]
    assert len(each) == len(lessons_on(Path(FILES[number])))
    assert sum(map(int, each)) == int(minutes)


def test_the_committed_page_shows_every_lesson():
    (lesson_map, status) = (cell["outputs"][0]["data"] for cell in PAGE if cell["cell_type"] == "code")
    links = re.findall(r"\((\d{3}_\w+\.ipynb)\)", "".join(lesson_map["text/markdown"]))
    assert links == list(PAGE_OF.values())
    assert "|" not in "".join(status["text/markdown"])  # whatever its author has done


def words():
    return re.findall(r"(?m)^\| \*\*(.+?)\*\* \|", TEXT)


def test_glossary_has_what_lessons_take_as_known_in_order():
    assert words() == sorted(words(), key=str.casefold)
    said = " ".join(words()).casefold()
    wanted = (
        "ttft tpot itl paged block rollover copy-on-write floor prefix cache fork preemption cuda graph replay prefill "
        "decode row bucket pinned"
    )
    assert [word for word in wanted.split() if word not in said] == []


@pytest.mark.parametrize("number", FILES)
def test_a_lesson_leads_to_its_neighbours_and_to_the_start_page(number):
    head, *_, link, last_code, foot = cells_of(FOLDER / FILES[number])
    feet, numbers = script("notebook_feet"), lessons_on(Path(FILES[number]))
    assert f"]({START})" in source_of(head)
    if number in COURSES:
        assert source_of(link) == feet.hunt_link(*numbers), "run `python docs/notebook_feet.py`"
    assert source_of(last_code) == feet.finish_code(*numbers), "run `python docs/notebook_feet.py`"
    assert source_of(foot) == feet.foot(number, PAGES), "run `python docs/notebook_feet.py`"


@pytest.mark.parametrize("number", COURSES)
def test_a_hunt_leads_to_its_lesson_and_to_the_start_page(number):
    head = source_of(cells_of(FOLDER / HUNTS / f"{number}_hunt.ipynb")[0])
    assert f"](../{PAGE_OF[number]})" in head
    assert f"](../{START})" in head


def test_the_page_that_looks_back_is_no_lesson():
    head, *_, last_code, foot = cells_of(FOLDER / END)
    assert f"]({START})" in source_of(head)
    assert "finish(" not in source_of(last_code)
    assert source_of(foot) == script("notebook_feet").foot(END[:3], PAGES), "run `python docs/notebook_feet.py`"
    (row,) = [line for line in lesson_map(FOLDER).splitlines() if END in line]
    assert row.count("|") == lesson_map(FOLDER).splitlines()[0].count("|")


def test_feet_are_written_once_and_renewed():
    feet = script("notebook_feet")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 035 · First")])
    feet.with_end(notebook, "035", {"035": "035_a.ipynb"})
    notebook.cells[1].execution_count = 7
    notebook.cells.append(nbformat.v4.new_code_cell("added below the end"))
    feet.with_end(notebook, "035", {"035": "035_a.ipynb", "036": "036_b.ipynb"})
    assert [cell.id for cell in notebook.cells[2:]] == ["finish", "foot"]
    assert notebook.cells[2].execution_count == 7
    assert "036_b.ipynb" in notebook.cells[3].source
    assert json.dumps(notebook).count("finish(") == 1
