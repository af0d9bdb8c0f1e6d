"""A class that is older than the text which its author sees is told as such."""

import ast
import importlib.util
import sys
from types import ModuleType

import pytest

from rosecourse.lab.checks.edited_since import edited_since

CELL = """
class Part:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, key_new, value_new):
        return sum(1 for _ in sessions)
"""


@pytest.fixture
def notebook(monkeypatch):
    """A module like a notebook's, and what runs a cell in it: one that fails leaves things as they are."""
    module = ModuleType("as_in_a_notebook")
    module.In = [""]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(cell):
        module.In.append(cell)
        try:
            exec(compile(cell, f"cell {len(module.In)}", "exec"), module.__dict__)
        except SyntaxError:
            return None
        return module.Part

    return run


def test_a_cell_that_ran_is_the_one_that_is_checked(notebook):
    assert edited_since(notebook(CELL)) == ()
    assert edited_since(notebook("# a comment\n\n" + CELL + "\nx = 3\n")) == ()


def test_statements_that_are_compiled_one_by_one_are_the_same(notebook):
    cell = "import torch\n" + CELL.replace("sum(1 for _ in sessions)", "torch.tensor([1])")
    run = sys.modules["as_in_a_notebook"]
    run.In.append(cell)
    for node in ast.parse(cell).body:
        exec(compile(ast.Module([node], []), "cell", "exec"), run.__dict__)
    assert edited_since(run.Part) == ()


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
def test_a_function_within_a_method_may_say_what_it_takes(notebook, first):
    inner = "def add(a: int, b: list[int]) -> int:\n            return a\n\n        return add(1, [])"
    part = notebook(first + CELL.replace("return sum(1 for _ in sessions)", inner))
    assert edited_since(part) == ()
    sys.modules["as_in_a_notebook"].In[-1] = CELL.replace("return sum(1 for _ in sessions)", inner)
    assert edited_since(part) == ()  # an earlier cell has asked for the same
    sys.modules["as_in_a_notebook"].In[-1] = CELL
    assert len(edited_since(part)) == 1


def test_a_cell_with_a_syntax_error_is_named(notebook):
    part = notebook(CELL)
    notebook(CELL.replace("return sum(", "return sum(("))
    [said] = edited_since(part)
    assert said == "the class that was checked is older than the cell In [2], which did not run to its end"


def test_a_class_of_an_earlier_cell_is_not_the_newest(notebook):
    older = notebook(CELL)
    newer = notebook(CELL.replace("1 for", "2 for"))
    assert edited_since(older)
    assert edited_since(newer) == ()


def test_cells_that_only_speak_of_the_class_do_not_count(notebook):
    part = notebook(CELL)
    notebook("print('class Part is here')")
    assert edited_since(part) == ()


@pytest.fixture
def imported(tmp_path, monkeypatch):
    file = tmp_path / "of_a_learner.py"
    file.write_text(CELL)
    spec = importlib.util.spec_from_file_location("of_a_learner", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "of_a_learner", module)
    spec.loader.exec_module(module)
    return file, module.Part


def test_a_file_that_is_as_it_was(imported):
    assert edited_since(imported[1]) == ()
    imported[0].write_text("import torch\n" + CELL)
    assert edited_since(imported[1]) == ()


@pytest.mark.parametrize("text", [CELL.replace("1 for", "2 for"), CELL + "\nclass", "", "x = 1"])
def test_a_file_that_has_changed_since_is_named(imported, text):
    imported[0].write_text(text)
    assert edited_since(imported[1]) == (
        "the class that was checked is older than of_a_learner.py: restart, and import it again",
    )


def test_what_nobody_has_written_does_not_count(notebook):
    part = notebook("from dataclasses import dataclass\n\n@dataclass\nclass Part:\n    model: int\n")
    assert edited_since(part) == ()
