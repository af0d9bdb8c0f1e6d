"""Published and recorded figures side by side: the rows of one lesson, and the README's table of all."""

import re

import pytest

from rosecourse import LESSONS
from rosecourse.measure.compare import HEADLINES
from rosecourse.records.published import published_figures
from rosecourse.records.tables import lessons_table, published_and_recorded
from tests.support.recordings import document_of, steady, twice_as_fast, write_recording


@pytest.fixture
def results(tmp_path):
    write_recording(tmp_path / "nvidia-h200" / "036.json", twice_as_fast())
    return tmp_path


def test_recorded_figures_stand_beside_the_published_ones(results):
    rows = published_and_recorded("036", folder=results)
    assert set(rows.workload) == {"64 requests x 512 tokens, batch 64 (scheduler)"}
    tpot = rows[rows.metric == "TPOT"]
    assert tpot.gpu.tolist() == ["the author's (not named)"] * 2 + ["NVIDIA H200"] * 3
    assert tpot.source.tolist()[-2:] == ["recorded, commit 0123456789ab, 2026-11-21"] * 2
    assert tpot.statistic.tolist() == ["p50", "mean", "", "p50", "mean"]
    assert tpot["times better"].tolist() == pytest.approx([15.32 / 14.98, 15.33 / 14.97, 35.96 / 34.69, 2, 2])
    rates = rows[rows.metric == "decode throughput"]
    assert rates["times better"].tolist()[0] == pytest.approx(4292.75 / 4192.88)
    assert rates["times better"].tolist()[-1] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("lesson", ["036", "038", "059", "060", "061"])
def test_without_a_recording_the_published_figures_stand_alone(tmp_path, lesson):
    rows = published_and_recorded(lesson, folder=tmp_path)
    assert sorted(rows.after) == sorted(published_figures(lesson).after)


def test_a_lesson_without_an_article_has_the_headlines_of_its_recording(tmp_path):
    write_recording(tmp_path / "cpu" / "035.json", document_of([], [steady(0.01)] * 5, "035"))
    rows = published_and_recorded("035", folder=tmp_path)
    assert rows.metric.tolist()[0] == "decode throughput"
    assert len(rows) == len(HEADLINES)
    assert rows.before.isna().all()
    assert published_and_recorded("035", folder=tmp_path / "none").empty


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


def test_the_table_has_a_row_for_each_rung_with_what_it_changes_and_its_workload(results, notebooks):
    header, line, *rows = cells_of(lessons_table(notebooks, folder=results))
    assert header == [
        "lesson",
        "what changes",
        "workload",
        "the article's figure, before and after",
        "recorded on one NVIDIA H200",
    ]
    assert set(line) == {"---"}
    links = [f"[{rung.number}](notebooks/{rung.number}_a_name.ipynb) {rung.title}" for rung in LESSONS]
    assert [row[0] for row in rows] == links
    assert [row[1] for row in rows] == [rung.about for rung in LESSONS]
    assert all(rung.about for rung in LESSONS)
    assert rows[-1][2] == "128 requests x 128 tokens, batch 128 (streaming)"


def test_the_table_shows_the_figure_that_the_article_is_about(results, notebooks):
    """By hand: the recorded TPOT is 2 x 4 .. 4.4 ms before and 4 .. 4.4 ms after, 4.14 ms in the mean."""
    write_recording(results / "nvidia-h200" / "059.json", twice_as_fast("059"))
    write_recording(results / "nvidia-h200" / "060.json", twice_as_fast("060"))
    _, _, *rows = cells_of(lessons_table(notebooks, folder=results))
    figures = {row[0][1:4]: row[3:] for row in rows}
    assert figures["035"] == ["", ""]
    assert figures["036"] == ["TPOT 15.33 to 14.97 ms", "8.28 to 4.14 ms: 2.00x [2.00, 2.00]"]
    assert figures["038"] == ["TPOT 14.98 to 6.50 ms", ""]  # not recorded
    assert figures["059"] == ["ITL p99 95.34 to 81.67 ms", "8.80 to 4.40 ms: 2.00x [2.00, 2.00]"]
    rates = "throughput 3807.13 to 3886.10 tokens/s"
    # 2 x 4 tokens in 4 steps: the mean of 2 / step over the five runs
    assert figures["060"] == [rates, "242 to 484 tokens/s: 2.00x [2.00, 2.00]"]


def test_the_table_without_any_recording(tmp_path, notebooks):
    header, _, *rows = cells_of(lessons_table(notebooks, folder=tmp_path / "none"))
    assert header[-1] == "recorded"
    assert [row[-1] for row in rows] == [""] * len(LESSONS)


def test_a_recording_of_the_first_lesson_alone_has_nothing_to_compare(tmp_path, notebooks):
    write_recording(tmp_path / "cpu" / "035.json", document_of([], [steady(0.01)] * 5, "035"))
    _, _, first, *_ = cells_of(lessons_table(notebooks, folder=tmp_path))
    assert first[3:] == ["", ""]


def test_every_line_of_the_table_is_one_of_markdown(results, notebooks):
    lines = lessons_table(notebooks, folder=results).splitlines()
    assert all(re.fullmatch(r"\|( [^|]+ \|| \|){5}", line) for line in lines), lines
