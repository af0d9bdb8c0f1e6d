"""The tables of all lessons, in markdown."""

import re

import pytest

from rosecourse import LESSONS
from rosecourse.records.runs import recorded_comparison
from rosecourse.records.tables import articles_table, lessons_table, named_cell, workloads_table
from tests.support.recordings import STEPS, steady, twice_as_fast, write_recording


@pytest.fixture
def results(tmp_path):
    write_recording(tmp_path, twice_as_fast())
    return tmp_path


@pytest.fixture
def notebooks(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for rung in LESSONS:
        (folder / f"{rung.number}_a_name.ipynb").touch()
    return folder


def cells_of(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_has_a_row_for_each_rung(results, notebooks):
    header, line, *rows = cells_of(lessons_table(notebooks, folder=results))
    assert header == ["lesson", "recorded (NVIDIA H200)"]
    assert set(line) == {"---"}
    links = [f"[{rung.number} {rung.title}](notebooks/{rung.number}_a_name.ipynb)" for rung in LESSONS]
    assert [row[0] for row in rows] == links


def test_the_legend_has_every_workload_that_is_recorded_for_the_readme_and_the_last_page():
    _, _, *rows = cells_of(workloads_table())
    assert [row[0] for row in rows] == ["A", "B", "C", "C-one", "D", "E", "F"]
    assert rows[0][1] == "64 requests x 512 tokens, batch 64 (scheduler)"
    assert rows[4][1] == "128 requests and 16 forks x 16 to 256 tokens, prompts of 5 to 200, batch 128 (mixed)"


def test_the_tables_show_the_figure_that_a_lesson_is_about(results, notebooks):
    """By hand: the recorded TPOT is 2 x 4 .. 4.4 ms before and 4 .. 4.4 ms after, 4.10 ms in the median run."""
    rungs = {"038": 4, "059": 2, "060": 1}
    write_recording(results, {number: [steady(n * step) for step in STEPS] for number, n in rungs.items()}, "B")
    _, _, *rows = cells_of(lessons_table(notebooks, folder=results))
    figures = {row[0][1:4]: row[1] for row in rows}
    assert figures["035"] == ""
    assert figures["036"] == "A: TPOT 2.00x [2.00, 2.00]"
    assert figures["062"] == "A: TPOT not recorded yet"
    rungs = {rung.number: rung for rung in LESSONS}
    figures = {number: named_cell(rungs[number], recorded_comparison(number, folder=results)) for number in rungs}
    assert figures["035"] == ""
    assert figures["036"] == "TPOT 8.20 to 4.10 ms: 2.00x [2.00, 2.00]"
    # 2 x 4 tokens in 4 steps: the mean of 2 / step over the five runs
    assert figures["060"] == "throughput 244 to 488 tokens/s: 2.00x [2.00, 2.00]"

    _, _, *rows = cells_of(articles_table(folder=results))
    figures = {row[0][:3]: row[2:] for row in rows}
    assert list(figures) == ["036", "038", "059", "060", "061"]
    assert figures["036"] == ["TPOT 15.33 to 14.97 ms: 1.02x", "8.20 to 4.10 ms: 2.00x [2.00, 2.00]"]
    assert figures["038"] == ["TPOT 14.98 to 6.50 ms: 2.30x", "not recorded yet"]
    assert figures["059"] == ["ITL p99 95.34 to 81.67 ms: 1.17x (256 requests)", "16.40 to 8.20 ms: 2.00x [2.00, 2.00]"]
    assert figures["060"][0] == "throughput 3807.13 to 3886.10 tokens/s: 1.02x (256 requests)"


def test_the_table_without_any_recording(tmp_path, notebooks):
    header, _, first, *rows = cells_of(lessons_table(notebooks, folder=tmp_path / "none"))
    assert header[1] == "recorded"
    assert first[1] == ""
    assert all(row[1].endswith(" not recorded yet") for row in rows)


def test_a_recording_of_the_first_lesson_alone_has_nothing_to_compare(tmp_path, notebooks):
    write_recording(tmp_path, {"035": [steady(0.01)] * 5})
    _, _, first, *_ = cells_of(lessons_table(notebooks, folder=tmp_path))
    assert first[1:] == [""]


def test_every_line_of_the_table_is_one_of_markdown(results, notebooks):
    lines = lessons_table(notebooks, folder=results).splitlines()
    assert all(re.fullmatch(r"\|( [^|]+ \|| \|){2}", line) for line in lines), lines
