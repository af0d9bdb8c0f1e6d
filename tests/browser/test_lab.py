"""Jupyter Lab in Chromium: what a learner does in it, from the first click to a run and the progress."""

import re

import pytest

from tests.browser.notebook import Notebook, use_theme
from tests.support.cells import solution

pytestmark = pytest.mark.timeout(600)  # a machine with other work

START, LESSON = "my/000_start_here.ipynb", "my/038_batched_append.ipynb"
FIRST = "035, paged decode baseline"
PART, CHECK = "class MyKVAppend", 'check(MyKVAppend, "038")'
RUN = "found = your_run("
PROGRESS = "my_status()"


def row_of(lesson, notebook):
    """What the progress table of the start page says of a lesson."""
    (row,) = [row for row in notebook.rows(PROGRESS) if row[0].startswith(lesson)]
    return row


def test_start_page_opens_and_a_lesson_runs_to_its_last_cell(lab, new_page):
    notebook = Notebook(new_page(), lab)
    assert notebook.path() == START
    notebook.run_menu("Run All Cells")
    assert notebook.rows(PROGRESS) == []
    assert notebook.errors() == []

    notebook.follow("# Start here", FIRST)
    notebook.run_menu("Run All Cells")
    assert notebook.errors() == []

    notebook.follow("**Next:**", "Start page")
    notebook.run(PROGRESS)
    assert row_of("035", notebook)[1] == "✓"


def test_learner_fails_the_check_mends_the_part_and_passes(lab, new_page):
    notebook = Notebook(new_page(), lab, LESSON)
    right = solution("038")
    wrong = right.replace(" or info.owners > 1", "")
    assert wrong != right

    notebook.select(PART)
    notebook.run_menu("Run All Above Selected Cell")
    notebook.write(PART, wrong)
    notebook.run(PART)
    said = notebook.run(CHECK)
    assert "✗" in said
    assert "fork" in said  # the story

    notebook.write(PART, right)
    notebook.run(PART)
    assert "KeyboardInterrupt" in notebook.interrupt(CHECK)
    said = notebook.run(CHECK)  # after the interrupt, as if there had been none
    assert "✓" in said
    assert "✗" not in said

    assert "Your part against before" in notebook.run(RUN)
    assert notebook.cell(RUN).query_selector(".jp-OutputArea img")
    assert "runs:" not in notebook.shown(RUN)  # the bar has gone
    notebook.save()

    notebook.follow("# 038", "Start page")
    notebook.run_menu("Run All Cells")
    assert row_of("038", notebook)[2] == "✓"
    assert re.match(r"\d\.\d+x", row_of("038", notebook)[3])


def test_lesson_shows_its_pictures_before_it_is_run(lab, new_page):
    notebook = Notebook(new_page(), lab, "my/036_block_table_cache.ipynb")
    drawn = "after = table_map("
    assert "Picture(" not in notebook.shown(drawn)
    assert notebook.cell(drawn).query_selector(".jp-OutputArea :is(svg, img)")


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_pages_fit_their_width_in_both_themes(lab, new_page, theme):
    page = new_page()
    use_theme(page, lab, f"JupyterLab {theme}")
    for path in (START, LESSON):
        notebook = Notebook(page, lab, path)
        assert page.evaluate("document.body.dataset.jpThemeLight") == str(theme == "Light").lower()
        assert notebook.too_wide() == []
