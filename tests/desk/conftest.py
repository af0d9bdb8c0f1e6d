"""A small repository with two lessons, and the learner's folder in it."""

import json

import pytest

HEAD = "# {0} · Lesson {0}\n\n**Time:** about 30 minutes to read; 40 minutes for the exercise."


def write_notebook(path, *sources, outputs=()):
    """A notebook: code cells of these sources, each with these outputs, below a head."""
    head = {"cell_type": "markdown", "source": HEAD.format(path.name[:3])}
    code = [{"cell_type": "code", "source": source, "outputs": list(outputs)} for source in sources]
    path.write_text(json.dumps({"cells": [head, *code]}))


@pytest.fixture
def root(tmp_path):
    """The repository's folder, with notebooks/ and no my/."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write_notebook(folder / "000_start_here.ipynb", "the map")
    write_notebook(folder / "036_tables.ipynb", "a = 1")
    write_notebook(folder / "038_append.ipynb", "b = 1")
    return tmp_path


@pytest.fixture
def desk(root, monkeypatch):
    """The learner's folder, in which this process works."""
    folder = root / "my"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
