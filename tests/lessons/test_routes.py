"""The route of 076, as its notebook holds it: the solution keeps prefixes and balance, the given cell only balance."""

import re

import pytest

from rosecourse.desk.notebooks import cells_of, source_of
from tests.support.cells import NOTEBOOKS


@pytest.fixture(scope="module")
def page():
    """What the page's cells up to the exercise define, its judge, and its solution."""
    cells = {cell["id"]: source_of(cell) for cell in cells_of(NOTEBOOKS / "076_replicas.ipynb")}
    imports = "import random\n\nimport rosecourse as rc\n\n"
    code = imports + "\n\n".join(cells[name] for name in ("traffic", "play", "mine", "judged"))
    names = {}
    exec(code, names)
    exec(re.search(r"```python\n(.*?)```", cells["hints"], re.DOTALL)[1], solved := {"BLOCK": names["BLOCK"]})
    return names | {"solution": solved["my_route"]}


def test_solution_keeps_hits_and_balance(page):
    hits, above = page["judged"](page["solution"])
    assert hits >= 0.9
    assert above <= 0.1


def test_given_route_loses_hits_and_keeps_balance(page):
    assert page["judged"](page["my_route"])[0] < 0.9
    assert page["judged"](page["my_route"])[1] <= 0.1


def test_solution_keeps_hits_of_more_replicas(page):
    assert page["judged"](page["solution"], 8)[0] > 1.5 * page["judged"](page["my_route"], 8)[0]
