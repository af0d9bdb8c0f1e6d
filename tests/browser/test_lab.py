"""Jupyter Lab in Chromium: what a learner does in it, from the first click to a run, a found bug and the progress."""

import re

import pytest

from rosecourse.lab import hunt
from tests.browser.notebook import Notebook, use_theme
from tests.support.cells import solution

pytestmark = pytest.mark.timeout(600)  # a machine with other work

START, LESSON, HUNT = "my/000_start_here.ipynb", "my/038_batched_append.ipynb", "my/hunts/038_hunt.ipynb"
FIRST = "035, paged decode baseline"
PART, CHECK = "class MyKVAppend", 'check(MyKVAppend, "038")'
RUN, SHORT = "found = your_run(", "def is_simple("
BUG, ANSWER = 'bug = hunt("038")', "bug.answer("
IMPORTS, PROGRESS = "import rosecourse as rc", "my_status()"


def answer(said):
    return f"bug.answer({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def row_of(lesson, notebook):
    """What the progress table of the start page says of a lesson."""
    (row,) = [row for row in notebook.rows(PROGRESS) if row[0].startswith(lesson)]
    return row


def test_make_lab_opens_the_start_page_and_a_lesson_runs_from_its_first_cell_to_its_last(lab, new_page, pictures):
    notebook = Notebook(new_page(), lab)
    assert notebook.path() == START
    notebook.run_menu("Run All Cells")
    assert notebook.rows(PROGRESS) == []
    assert notebook.errors() == []
    notebook.picture(pictures / "000_new.png", "# Start here")

    notebook.follow("# Start here", FIRST)
    notebook.run_menu("Run All Cells")
    assert notebook.errors() == []
    notebook.picture(pictures / "035_end.png", 'finish("035")')

    notebook.follow("**Next:**", "Start page")
    notebook.run(PROGRESS)
    assert row_of("035", notebook)[1] == "✓"


def test_a_learner_fails_the_check_mends_the_part_and_passes(lab, new_page, pictures):
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
    notebook.picture(pictures / "038_wrong.png", CHECK)

    notebook.write(PART, right)
    notebook.run(PART)
    assert "KeyboardInterrupt" in notebook.interrupt(CHECK)
    said = notebook.run(CHECK)  # after the interrupt, as if there had been none
    assert "✓" in said
    assert "✗" not in said
    notebook.picture(pictures / "038_passed.png", CHECK)

    assert "Your part against before" in notebook.run(RUN)
    assert notebook.cell(RUN).query_selector(".jp-OutputArea img")
    assert "runs:" not in notebook.shown(RUN)  # the bar has gone
    notebook.picture(pictures / "038_run.png", RUN)
    notebook.save()

    notebook.follow("# 038", "Start page")
    notebook.run_menu("Run All Cells")
    assert row_of("038", notebook)[2] == "✓"
    assert re.match(r"\d\.\d+x", row_of("038", notebook)[3])
    notebook.picture(pictures / "000_progress.png", PROGRESS)


def test_a_bug_is_hunted_with_a_wrong_answer_and_then_the_right_one(lab, new_page, pictures):
    notebook = Notebook(new_page(), lab, HUNT)
    found = hunt("038")
    right = {name: min(values) for name, values in found._truth.items()}
    right["line"] = found.bug.fault.splitlines()[0].strip()

    notebook.run(BUG)
    notebook.write(ANSWER, answer(right | {"line": "class"}))
    said = notebook.run(ANSWER)
    assert said.count("✓") == len(right) - 1
    assert said.count("✗") == 1
    notebook.picture(pictures / "038_hunted.png", ANSWER)

    notebook.write(ANSWER, answer(right))
    said = notebook.run(ANSWER)
    assert "✓ Found." in said
    assert "✗" not in said
    notebook.picture(pictures / "038_found.png", ANSWER)
    notebook.save()

    notebook.follow("# Bug hunt 038", "Start page")
    notebook.run_menu("Run All Cells")
    assert row_of("038", notebook)[4] == "✓"


def test_a_long_measurement_is_interrupted_and_the_kernel_restarted(lab, new_page, pictures):
    notebook = Notebook(new_page(), lab, LESSON)
    notebook.run(IMPORTS)
    notebook.run(PART)
    notebook.run(SHORT)
    assert "KeyboardInterrupt" in notebook.interrupt(RUN)
    notebook.run(SHORT)
    assert len(notebook.errors()) == 1  # the interrupt

    notebook.restart()
    assert "NameError" in notebook.run(SHORT)
    notebook.picture(pictures / "038_restarted.png", SHORT)
    notebook.run(IMPORTS)
    assert "NameError" not in notebook.run(SHORT)


def test_a_lesson_shows_its_pictures_before_it_is_run(lab, new_page, pictures):
    notebook = Notebook(new_page(), lab, "my/036_block_table_cache.ipynb")
    drawn = "after = table_map("
    assert "Picture(" not in notebook.shown(drawn)
    assert notebook.cell(drawn).query_selector(".jp-OutputArea :is(svg, img)")
    notebook.picture(pictures / "036_not_run.png", drawn)


@pytest.mark.parametrize("theme", ["Light", "Dark"])
@pytest.mark.parametrize("width", [1280, 1440, 1920])
def test_pages_fit_their_width_in_both_themes(lab, new_page, pictures, width, theme):
    page = new_page(width)
    use_theme(page, lab, f"JupyterLab {theme}")
    for path, cells in {
        START: {"top": "# Start here", "progress": PROGRESS, "glossary": "## Glossary"},
        LESSON: {"top": "# 038", "part": PART, "verdict": CHECK, "change": 'change("038")', "run": RUN},
    }.items():
        notebook = Notebook(page, lab, path)
        assert page.evaluate("document.body.dataset.jpThemeLight") == str(theme == "Light").lower()
        assert notebook.too_wide() == []
        for name, cell in cells.items():
            notebook.picture(pictures / f"{path[3:6]}_{name}_{theme.lower()}_{width}.png", cell)
