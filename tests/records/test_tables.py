"""Published and recorded figures side by side: the rows of one lesson, and the README's table of all."""

import re

import pytest

from rosecourse import LESSONS, RosecourseError
from rosecourse.records.recordings import read_recording
from rosecourse.records.tables import (
    COLUMNS,
    articles_table,
    lessons_table,
    published_and_recorded,
    workloads_table,
)
from tests.support.recordings import STEPS, document_of, steady, twice_as_fast, write_recording


@pytest.fixture
def results(tmp_path):
    write_recording(tmp_path / "nvidia-h200" / "A.json", twice_as_fast())
    return tmp_path


def test_recorded_figures_stand_beside_the_published_ones(results):
    """By hand: the recorded TPOT is 2 x 4 .. 4.4 ms before and 4 .. 4.4 ms after, 4.10 ms in the median run."""
    rows = published_and_recorded("036", folder=results)
    assert rows.columns.tolist() == COLUMNS
    assert rows.index.tolist() == [
        "total throughput (tokens/s)",
        "TPOT mean (ms/token)",  # the headline's statistic
        "ITL p99 (ms)",
        "TTFT p50 (ms)",
    ]
    article, original = "15.33 → 14.97 (1.024x)", "35.96 → 34.69 (1.037x)"
    tpot = rows.loc["TPOT mean (ms/token)"].tolist()
    assert tpot == [article, original, "8.20", "4.10", "2.000x [2.000, 2.000]"]
    assert rows.loc["ITL p99 (ms)"].tolist() == ["", "", "8.20", "4.10", "2.000x [2.000, 2.000]"]
    assert rows.loc["total throughput (tokens/s)"].tolist()[:4] == ["4,102 → 4,200 (1.024x)", "", "244", "488"]
    assert rows.attrs["caption"] == (
        "Article 036: 64 requests x 512 tokens, batch 64 (scheduler), on the author's GPU (not named). Original code, "
        "torch 2.11, 2026-11-21: 64 requests x 512 tokens, batch 64 (scheduler), on NVIDIA H200. Here: 2 requests x "
        "4 tokens, batch 64 (scheduler), 5 rounds, on NVIDIA H200, commit 0123456789ab, 2026-11-21."
    )


def test_a_shorter_workload_is_said_in_the_caption_and_its_rows_stand_together(tmp_path):
    write_recording(tmp_path / "nvidia-h200" / "B.json", twice_as_fast("038", "059", "B"))
    rows = published_and_recorded("059", folder=tmp_path)
    assert rows.loc["ITL p99 (ms)"].tolist()[:3] == ["95.34 → 81.67 (1.167x)", "43.83 → 40.36 (1.086x)", "8.20"]
    caption = rows.attrs["caption"]
    assert "Article 059: 256 requests x 256 tokens, batch 16" in caption
    assert "Here: 2 requests x 4 tokens, batch 16" in caption


def test_of_a_statistic_that_was_not_published_all_that_were_are_shown(tmp_path):
    """061 gives its TPOT run by run, and of the original code only what is after it, on this workload."""
    rows = published_and_recorded("061", folder=tmp_path)
    article, original = rows.loc["TPOT p50 (ms/token)"].tolist()[:2]
    assert article.startswith("run 1: 8.48 → 8.06 (1.052x); run 2: 8.66")
    assert original == "lowest: after 12.00; highest: after 13.30"  # 8.84 is of another workload
    assert rows.loc["total throughput (tokens/s)"].tolist()[0] == "14,420 → 14,648 (1.016x)"


@pytest.mark.parametrize("lesson", ["036", "038", "059", "060", "061"])
def test_a_lesson_has_three_to_five_rows_and_no_cell_is_nan(tmp_path, lesson):
    rungs = {rung.number: [steady(step) for step in STEPS] for rung in LESSONS}
    for name in "ABC":
        write_recording(tmp_path / "recorded" / "cpu" / f"{name}.json", document_of(rungs, name))
    for folder in ("none", "recorded"):
        rows = published_and_recorded(lesson, folder=tmp_path / folder)
        assert 3 <= len(rows) <= 5
        assert all(type(cell) is str and "nan" not in cell for cell in rows.to_numpy().ravel())
        assert (rows["here, after"] == "").all() == (folder == "none")


def test_the_first_lesson_has_the_figures_of_its_recording_alone(results, tmp_path):
    rows = published_and_recorded("035", folder=results)
    assert len(rows) == 3
    assert rows.loc["TPOT mean (ms/token)"].tolist() == ["", "", "", "8.20", ""]
    assert rows.attrs["caption"].startswith("Here: ")
    empty = published_and_recorded("035", folder=tmp_path / "none")
    assert (len(empty), list(empty), empty.attrs["caption"]) == (0, COLUMNS, "")


# -- the README's table -------------------------------------------------------------------------------------------


@pytest.fixture
def notebooks(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for rung in LESSONS:
        (folder / f"{rung.number}_a_name.ipynb").touch()
    return folder


def cells_of(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_has_a_row_for_each_rung_with_what_it_changes_its_workload_and_its_race(results, notebooks):
    header, line, *rows = cells_of(lessons_table(notebooks, {"036": "time"}, folder=results))
    assert header == [
        "lesson",
        "what changes",
        "workload",
        "recorded (NVIDIA H200)",
        "race on a CPU",
    ]
    assert set(line) == {"---"}
    links = [f"[{rung.number}](notebooks/{rung.number}_a_name.ipynb) {rung.title}" for rung in LESSONS]
    assert [row[0] for row in rows] == links
    assert [row[1] for row in rows] == [rung.about for rung in LESSONS]
    assert all(rung.about for rung in LESSONS)
    workloads = {row[0][1:4]: row[2] for row in rows}
    assert (workloads["064"], workloads["065"], workloads["066"]) == ("C", "E", "A")
    assert [row[-1] for row in rows] == ["", "time", *[""] * (len(LESSONS) - 2)]


def test_a_note_stands_behind_the_figures_in_every_table(results, notebooks):
    document = document_of({number: [steady(step) for step in STEPS] for number in ("060", "061")}, "C")
    write_recording(results / "nvidia-h200" / "C.json", document)
    _, _, *rows = cells_of(lessons_table(notebooks, {}, folder=results))
    noted = {row[0][1:4]: row[3] for row in rows if row[3].endswith(")")}
    assert noted == {"061": "throughput 488 to 488 tokens/s: 1.00x [1.00, 1.00] (its kernel never ran in these runs)"}
    _, _, *rows = cells_of(articles_table(folder=results))
    assert [row[0][:3] for row in rows if row[3].endswith(" (its kernel never ran in these runs)")] == ["061"]


def test_the_legend_has_every_workload_that_is_recorded_for_the_readme_and_the_last_page():
    _, _, *rows = cells_of(workloads_table())
    assert [row[0] for row in rows] == ["A", "B", "C", "C-one", "D", "E", "F"]
    assert rows[0][1] == "64 requests x 512 tokens, batch 64 (scheduler)"
    assert rows[4][1] == "128 requests and 16 forks x 16 to 256 tokens, prompts of 5 to 200, batch 128 (mixed)"


def test_the_tables_show_the_figure_that_a_lesson_is_about(results, notebooks):
    """By hand: the recorded TPOT is 2 x 4 .. 4.4 ms before and 4 .. 4.4 ms after, 4.10 ms in the median run."""
    rungs = {"038": 4, "059": 2, "060": 1}
    document = document_of({number: [steady(n * step) for step in STEPS] for number, n in rungs.items()}, "B")
    write_recording(results / "nvidia-h200" / "B.json", document)
    _, _, *rows = cells_of(lessons_table(notebooks, {}, folder=results))
    figures = {row[0][1:4]: row[3] for row in rows}
    assert figures["035"] == ""
    assert figures["036"] == "TPOT 8.20 to 4.10 ms: 2.00x [2.00, 2.00]"
    assert figures["062"] == "TPOT not recorded yet"
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
    header, _, *rows = cells_of(lessons_table(notebooks, {}, folder=tmp_path / "none"))
    assert header[3] == "recorded"
    assert rows[0][3] == ""
    assert all(row[3].endswith(" not recorded yet") for row in rows[1:])


def test_a_lesson_without_a_notebook_has_a_row_without_a_link(tmp_path, notebooks):
    (notebooks / "062_a_name.ipynb").unlink()
    _, _, *rows = cells_of(lessons_table(notebooks, {}, folder=tmp_path / "none"))
    names = {row[0].strip("[")[:3]: row[0] for row in rows}
    assert names["062"] == "062 one table for all layers"
    assert names["063"] == "[063](notebooks/063_a_name.ipynb) slots from the table"


def test_a_recording_of_the_first_lesson_alone_has_nothing_to_compare(tmp_path, notebooks):
    write_recording(tmp_path / "cpu" / "A.json", document_of({"035": [steady(0.01)] * 5}))
    _, _, first, *_ = cells_of(lessons_table(notebooks, {}, folder=tmp_path))
    assert first[3:] == ["", ""]


def test_every_line_of_the_table_is_one_of_markdown(results, notebooks):
    lines = lessons_table(notebooks, {}, folder=results).splitlines()
    assert all(re.fullmatch(r"\|( [^|]+ \|| \|){5}", line) for line in lines), lines


def test_a_file_is_taken_apart_once_and_anew_when_it_has_changed(results):
    path = results / "nvidia-h200" / "A.json"
    read = read_recording(path, "A")
    assert read_recording(path, "A") is read
    write_recording(path, twice_as_fast("036", "038"))
    assert read_recording(path, "A").rungs.keys() == {"036", "038"}
    path.write_text("{")
    with pytest.raises(RosecourseError, match="cannot be used"):
        read_recording(path, "A")
