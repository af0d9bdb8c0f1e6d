"""The tables of all lessons, in markdown."""

from pathlib import Path

from rosecourse import LESSONS, lesson
from rosecourse.pages.shared import page_of
from rosecourse.records.runs import recorded_comparison
from rosecourse.records.tables import articles_table, lessons_table, named_cell, workloads_table
from tests.support.recordings import STEPS, steady, twice_as_fast, write_recording

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def cells_of(table):
    lines = table.splitlines()
    assert all(line.startswith("| ") and line.endswith(" |") for line in (lines[0], *lines[2:]))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_legend_has_every_workload_that_is_recorded():
    _, _, *rows = cells_of(workloads_table())
    assert [row[0] for row in rows] == ["A", "B", "C", "C-one", "D", "E", "F"]
    assert rows[0][1] == "64 requests x 512 tokens, batch 64 (scheduler)"


def test_tables_show_the_figure_that_a_lesson_is_about(tmp_path):
    """By hand: the recorded TPOT is 2 x 4 .. 4.4 ms before and 4 .. 4.4 ms after, 4.10 ms in the median run."""
    write_recording(tmp_path, twice_as_fast())
    rungs = {"038": 4, "059": 2, "060": 1}
    write_recording(tmp_path, {number: [steady(n * step) for step in STEPS] for number, n in rungs.items()}, "B")
    write_recording(tmp_path, {number: [steady(step) for step in STEPS] for number in ("060", "061")}, "C")
    header, _, *rows = cells_of(lessons_table(NOTEBOOKS, folder=tmp_path))
    assert header == ["lesson", "recorded (NVIDIA H200)"]
    links = [
        f"[{rung.number} {rung.title}](notebooks/{next(NOTEBOOKS.glob(page_of(rung.number))).name})" for rung in LESSONS
    ]
    assert [row[0] for row in rows] == links
    figures = {row[0][1:4]: row[1] for row in rows}
    assert [figures["035"], figures["036"]] == ["", "A: TPOT 2.00x [2.00, 2.00]"]
    assert figures["062"] == "A: TPOT not recorded yet"
    figures = {n: named_cell(lesson(n), recorded_comparison(n, folder=tmp_path)) for n in ("035", "036", "060")}
    # of 060, 2 x 4 tokens in 4 steps: the mean of 2 / step over the five runs
    assert [*figures.values()] == [
        "",
        "TPOT 8.20 to 4.10 ms: 2.00x [2.00, 2.00]",
        "throughput 244 to 488 tokens/s: 2.00x [2.00, 2.00]",
    ]
    _, _, *rows = cells_of(articles_table(folder=tmp_path))
    figures = {row[0][:3]: row[2:] for row in rows}
    assert list(figures) == ["036", "038", "059", "060", "061"]
    assert figures["036"] == ["TPOT 15.33 to 14.97 ms: 1.02x", "8.20 to 4.10 ms: 2.00x [2.00, 2.00]"]
    assert figures["038"] == ["TPOT 14.98 to 6.50 ms: 2.30x", "not recorded yet"]
    assert figures["059"] == ["ITL p99 95.34 to 81.67 ms: 1.17x (256 requests)", "16.40 to 8.20 ms: 2.00x [2.00, 2.00]"]
    assert figures["061"][1] == "488 to 488 tokens/s: 1.00x [1.00, 1.00], no difference"


def test_a_table_without_a_recording_says_so(tmp_path):
    header, _, first, *rows = cells_of(lessons_table(NOTEBOOKS, folder=tmp_path / "none"))
    assert (header[1], first[1]) == ("recorded", "")
    assert all(row[1].endswith(" not recorded yet") for row in rows)
    write_recording(tmp_path, {"035": [steady(0.01)] * 5})  # which has nothing to compare
    assert cells_of(lessons_table(NOTEBOOKS, folder=tmp_path))[2][1] == ""
