"""The notebooks as files: executed from top to bottom, without errors, and no larger than they may be."""

import base64
import importlib.util
import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_000_000


def script(name):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_whole_and_small(path):
    assert path.stat().st_size < MOST_BYTES
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_a_shrunk_picture_looks_the_same(tmp_path):
    figure, ax = plt.subplots(figsize=(6, 3))
    ax.plot(np.sin(np.arange(300) / 20), color="#D55E00")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    png = buffer.getvalue()
    output = {"output_type": "display_data", "metadata": {}, "data": {"image/png": base64.b64encode(png).decode()}}
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "outputs": [output], "source": []}]}))
    script("shrink_pictures").main([str(path)])
    data = json.loads(path.read_text())["cells"][0]["outputs"][0]["data"]["image/png"]
    shrunk = base64.b64decode(data)
    assert len(shrunk) < 0.8 * len(png)
    before, after = (np.asarray(Image.open(io.BytesIO(one)).convert("RGB")).astype(int) for one in (png, shrunk))
    assert np.abs(before - after).max() <= 24  # of 255
    assert np.abs(before - after).mean() < 1
