"""The notebooks hold what the lab says: exercises, hints and explanations, to the letter."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises.cells import exercise, hints, introduction
from rosecourse.lab.exercises.hunting import explanation
from rosecourse.pages.source import COLUMNS

FENCED = re.compile(r"```\w+\n(.*?)```", re.DOTALL)
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def texts_of(file):
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def as_in_notebooks(sources, folder):
    """Sources, by name, as the formatter of notebooks leaves them."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    config = ["--config", NOTEBOOKS / "ruff.toml"]
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", "--no-cache", *config, folder], check=True)
    return {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in sources}


def test_the_notebooks_hold_the_exercises(tmp_path):
    held = {}
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        tagged = ["".join(c["source"]) for c in cells if "exercise" in c["metadata"].get("tags", [])]
        if tagged:
            held[file.name[:3]] = tagged
    assert list(held)[:5] == list(COURSES)[:5]
    wanted = as_in_notebooks({number: exercise(number) for number in held}, tmp_path)
    assert held == {number: [source.rstrip("\n")] for number, source in wanted.items()}


def test_the_notebooks_hold_the_hints(tmp_path):
    held = {number: file for number in COURSES for file in NOTEBOOKS.glob(f"{number}_*.ipynb")}
    unfolded = {number: hints(number) for number in held}
    code = {number: FENCED.search(text)[1] for number, text in unfolded.items()}
    narrow = as_in_notebooks(code, tmp_path)
    for number, file in held.items():
        texts, wanted = texts_of(file), unfolded[number].replace(code[number], narrow[number])
        assert texts.count(wanted.rstrip("\n")) == 1, number
        assert max(map(len, FENCED.search(wanted)[1].splitlines())) <= COLUMNS
        assert sum(introduction(number).rstrip("\n") in text for text in texts) == 1


@pytest.mark.parametrize("number", COURSES)
def test_a_hunt_explains_its_bug(number):
    wanted = explanation(number)
    assert texts_of(NOTEBOOKS / "hunts" / f"{number}_hunt.ipynb")[-1] == wanted.rstrip("\n")
    assert max(map(len, FENCED.search(wanted)[1].splitlines())) <= COLUMNS
