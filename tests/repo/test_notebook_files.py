"""The notebooks as files: executed from top to bottom, without errors, and no larger than they may be."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from rosecourse.desk.notebooks import all_notebooks_in, notebooks_in
from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
NOTEBOOKS = all_notebooks_in(ROOT / "notebooks")
LESSONS = notebooks_in(ROOT / "notebooks")
MOST_BYTES = 1_000_000


def markdown_of(cell):
    return "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_whole_and_small(path):
    assert path.stat().st_size < MOST_BYTES
    notebook = json.loads(path.read_text())
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    assert notebook["metadata"]["kernelspec"] == kernel  # else Jupyter Lab changes it when it opens the notebook
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_the_head_of_a_lesson_calls_its_neighbours_by_their_titles():
    heads = ["".join(json.loads(path.read_text())["cells"][0]["source"]) for path in LESSONS]
    links = [link for head in heads for link in re.findall(r"\*\*(?:Previous|Next):\*\* \[(\d{3}), ([^\]]+)\]", head)]
    assert links
    title_of = script("notebook_feet").title_of
    assert [(number, title) for number, title in links if title != title_of(number)] == []


def test_every_lesson_that_is_named_is_there():
    """037 belongs to the articles' series alone."""
    pages = {path: json.loads(path.read_text())["cells"] for path in NOTEBOOKS}
    text = {path: "\n".join(map(markdown_of, cells)) for path, cells in pages.items()}
    named = [(path.stem, one) for path in text for one in re.findall(r"(?<![\w.,/-])0\d\d\b(?![.,]\d)", text[path])]
    known = {path.stem[:3] for path in LESSONS} | {"037"}
    assert [(page, one) for page, one in named if one not in known] == []


def test_a_page_without_its_live_figure_fails(tmp_path):
    """`pytest --nbval` says so, whatever its cells do."""
    pytest.importorskip("nbval")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "notebooks").mkdir()
    png = nbformat.v4.new_output("display_data", {"image/png": ""})
    for number, source, outputs in (("036", "# your_run(", [png]), ("038", "other", [png]), ("059", "your_run()", [])):
        cell = nbformat.v4.new_code_cell(source, outputs=outputs)
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks" / f"{number}_page.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert re.findall(r"^ERROR notebooks/(\d{3})_page", said, re.M) == ["038", "059"]
