"""The notebooks as files: executed from top to bottom, without errors, and no larger than they may be."""

import json
import re
from pathlib import Path

import pytest

from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_000_000


def markdown_of(cell):
    return "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_whole_and_small(path):
    assert path.stat().st_size < MOST_BYTES
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebooks_kernel_has_the_name_that_jupyter_lab_writes(path):
    """Else Jupyter Lab writes it when it opens the notebook, which then counts as changed."""
    kernel = json.loads(path.read_text())["metadata"]["kernelspec"]
    assert kernel == {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def test_the_head_of_a_lesson_calls_its_neighbours_by_their_titles():
    heads = ["".join(json.loads(path.read_text())["cells"][0]["source"]) for path in NOTEBOOKS]
    links = [link for head in heads for link in re.findall(r"\*\*(?:Previous|Next):\*\* \[(\d{3}), ([^\]]+)\]", head)]
    assert len(links) > len(NOTEBOOKS)
    title_of = script("notebook_feet").title_of
    assert [(number, title) for number, title in links if title != title_of(number)] == []


def test_every_lesson_that_is_named_is_there():
    """037 belongs to the articles' series alone."""
    pages = {path: json.loads(path.read_text())["cells"] for path in NOTEBOOKS}
    text = {path: "\n".join(map(markdown_of, cells)) for path, cells in pages.items()}
    named = [(path.stem, one) for path in text for one in re.findall(r"(?<![\w.,/-])0\d\d\b(?![.,]\d)", text[path])]
    assert len(named) > 500
    known = {path.stem[:3] for path in NOTEBOOKS} | {"037"}
    assert [(page, one) for page, one in named if one not in known] == []


def test_a_command_for_a_gpu_says_what_to_leave_out_on_a_cpu():
    texts = [text for path in NOTEBOOKS for text in map(markdown_of, json.loads(path.read_text())["cells"])]
    ours = r"^    rosecourse benchmark_(scheduler|streaming)"
    asking = [text for text in texts if re.search(ours, text, re.M) and "--device cuda" in text]
    assert len(asking) > 12
    assert [text for text in asking if "On a CPU leave out `--random-weights gpt2 --device cuda`" not in text] == []


def test_a_heading_that_folds_has_no_markdown():
    """GitHub and Jupyter do not read it there, and show its asterisks."""
    pages = [cell for path in NOTEBOOKS for cell in json.loads(path.read_text())["cells"]]
    text = "\n".join("".join(cell["source"]) for cell in pages if cell["cell_type"] == "markdown")
    summaries = re.findall(r"<summary>(.*?)</summary>", text, re.DOTALL)
    assert len(summaries) > 30
    assert [one for one in summaries if re.search(r"\*\S|`|\]\(", one)] == []


def test_a_command_fits_into_its_lines():
    """A longer line is broken on a page 1280 pixels wide, inside an option."""
    pages = [cell for path in NOTEBOOKS for cell in json.loads(path.read_text())["cells"]]
    lines = "".join("".join(cell["source"]) + "\n" for cell in pages if cell["cell_type"] == "markdown").splitlines()
    commands = [line for line in lines if re.match(r" {4}(python -m |.* --)", line)]
    assert len(commands) > 40
    assert [line for line in commands if len(line) > 90] == []
