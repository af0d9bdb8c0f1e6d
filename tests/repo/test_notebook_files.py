"""The notebooks as files: executed from top to bottom, without errors, and no larger than they may be."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_000_000


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
