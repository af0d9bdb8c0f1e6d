"""Jupyter Lab in Chromium: what a learner does in it, from the first click to a passed check."""

import pytest

from rosecourse.lab.exercises.cells import solution
from rosecourse.lab.world.causes import Cause
from tests.browser.notebook import Notebook, use_theme

FOLDER = "notebooks"
BASELINE, LESSON = f"{FOLDER}/035_paged_decode_baseline.ipynb", f"{FOLDER}/038_batched_append.ipynb"
PART, CHECK, LONG = "class MyKVAppend", 'check(MyKVAppend, "038")', "found = compare("


def test_a_lesson_runs_from_its_first_cell_to_its_last(lab, new_page, pictures):
    notebook = Notebook(new_page(), lab, BASELINE)

    notebook.run_menu("Run All Cells")

    assert notebook.errors() == []
    notebook.page.screenshot(path=pictures / "035_run.png")


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
    assert Cause.COW_MISSED.headline in said
    notebook.page.screenshot(path=pictures / "038_wrong.png")

    notebook.write(PART, right)
    notebook.run(PART)
    assert "KeyboardInterrupt" in notebook.interrupt(CHECK)
    said = notebook.run(CHECK)  # after the interrupt, as if there had been none
    assert "✓" in said
    assert "✗" not in said
    notebook.page.screenshot(path=pictures / "038_passed.png")
    notebook.save()


def test_a_long_measurement_is_interrupted_and_the_kernel_restarted(lab, new_page, pictures):
    notebook = Notebook(new_page(), lab, LESSON)
    notebook.run("import rosecourse as rc")
    assert "KeyboardInterrupt" in notebook.interrupt(LONG)
    notebook.page.screenshot(path=pictures / "038_interrupted.png")

    notebook.run("times = decode_anatomies(")
    assert len(notebook.errors()) == 1  # the interrupt

    notebook.restart()
    assert "NameError" in notebook.run("times = decode_anatomies(")
    notebook.page.screenshot(path=pictures / "038_restarted.png")
    notebook.select("times = decode_anatomies(")
    notebook.run("import rosecourse as rc")
    assert "NameError" not in notebook.run("times = decode_anatomies(")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
@pytest.mark.parametrize("width", [1280, 1440])
def test_pages_fit_their_width_in_both_themes(lab, new_page, pictures, width, theme):
    page = new_page(width)
    use_theme(page, lab, theme)
    notebook = Notebook(page, lab, LESSON)

    assert page.evaluate("document.body.dataset.jpThemeLight") == str(theme.endswith("Light")).lower()
    assert notebook.too_wide() == []
    for name, cell in {"top": "# 038", "verdict": CHECK, "change": 'change("038")'}.items():
        notebook.cell(cell)
        page.screenshot(path=pictures / f"038_{name}_{theme.split()[-1].lower()}_{width}.png")
