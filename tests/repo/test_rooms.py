"""The house that the package is: few rooms, none too large, and arrows between them that point down."""

from pathlib import Path

import pytest

import rosecourse
from tests.repo.house import House, circle

# From the ground up. The package's own door is on the ground: what it hands on counts as imported from where it stands.
FLOORS = [
    *("__init__", "errors", "checks", "config", "pages"),
    *("models", "kv", "request", "kernels", "decode", "engine", "lessons", "measure", "records", "pictures", "desk"),
    *("lab/checking", "lab/course", "lab/checks", "lab/exercises", "lab"),
    *("commands", "__main__"),
]
MOST_ROOMS = 21
MOST_LOOSE_FILES = 5
LARGEST_SHARE = 0.35  # of the package's lines


def too_many_rooms(house):
    return sorted(house.rooms) if len(house.rooms) > MOST_ROOMS else []


def too_many_loose_files(house):
    return house.loose_files if len(house.loose_files) > MOST_LOOSE_FILES else []


def rooms_without_a_floor(house):
    return sorted(house.lines.keys() - set(FLOORS))


def too_large_rooms(house):
    total = house.lines.total()
    return [f"{room}: {n / total:.0%} of the lines" for room, n in house.lines.items() if n > LARGEST_SHARE * total]


RULES = {
    "too many rooms": too_many_rooms,
    "too many loose files": too_many_loose_files,
    "without a floor": rooms_without_a_floor,
    "too large": too_large_rooms,
    "circle of modules": lambda house: circle(house.imports),
    "circle of rooms": lambda house: circle(house.arrows),
    "upward": lambda house: house.upward(FLOORS),
    "private names of others": lambda house: house.private_names_of_others,
}


@pytest.fixture(scope="module")
def house():
    return House(Path(rosecourse.__file__).parent)


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(house, rule):
    broken_by = RULES[rule](house)
    assert not broken_by, "\n".join([rule, *broken_by])


def test_the_whole_package_is_read(house):
    assert len(house.files) == sum(1 for _ in house.folder.rglob("*.py"))
    assert house.rooms >= {"config", "kv", "decode", "lessons", "lab/checking", "commands"}
    assert set(FLOORS) == house.lines.keys()  # none of them is gone


# Small houses that break a rule each.


def build(folder, files):
    """A package `rosecourse` of these files, with an `__init__` in each folder."""
    package = folder / "rosecourse"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for above in path.relative_to(package).parents:
            (package / above / "__init__.py").touch()
    return House(package)


def broken(house):
    return {rule: found for rule, complaints in RULES.items() if (found := complaints(house))}


SOUND = {
    "errors.py": "class Odd(Exception): ...\n",
    "kv/blocks.py": "from ..errors import Odd\nclass Pool:\n    _free = 1\n    def take(self): return self._free\n",
    "decode/__init__.py": "from .step import step\n",
    "decode/step.py": "from .. import errors\nfrom ..kv import blocks\ndef step(): ...\n",
    "lab/checking/pool.py": "from rosecourse.decode import step\nimport rosecourse.kv.blocks\nimport os.path\n",
    "lab/checks/check.py": "from ..checking import pool\n",
    "config.py": "import os\n" * 4,
}


def test_a_sound_house_breaks_no_rule(tmp_path):
    house = build(tmp_path, SOUND)
    assert broken(house) == {}
    assert house.rooms == {"errors", "config", "kv", "decode", "lab/checking", "lab/checks"}
    assert house.arrows["lab/checking"] == {"decode", "kv"}
    assert house.imports["decode.step"] == {"errors", "kv.blocks"}


def test_rooms_and_loose_files_are_counted(tmp_path):
    rooms = {f"lab/room{n}/a.py": "" for n in range(MOST_ROOMS - 2)} | {"decode/a.py": "", "decode/deep/b.py": ""}
    house = build(tmp_path, rooms | {"errors.py": "", "__main__.py": ""})
    assert len(house.rooms) == MOST_ROOMS  # a folder inside a room is part of it, and doors are no rooms
    assert broken(house).keys() == {"without a floor"}
    house = build(tmp_path, {f"{name}.py": "" for name in ("more", "most", "config")})
    assert broken(house).keys() == {"too many rooms", "too many loose files", "without a floor"}


def test_a_large_room(tmp_path):
    files = {f"{room}/a.py": "x = 1\n" * lines for room, lines in {"kv": 35, "decode": 34, "models": 31}.items()}
    assert broken(build(tmp_path, files)) == {}
    assert broken(build(tmp_path, {"kv/b.py": "\n" * 2})) == {"too large": ["kv: 36% of the lines"]}


def circle_of(back):
    return {"kv/a.py": "from .b import y", "kv/b.py": "from .c import z", "kv/c.py": back}


def importing(file, text):
    rest = ("config.py", "__main__.py", "engine/core.py", "lab/checks/a.py", "commands/a.py")
    return dict.fromkeys(rest, "") | {"__init__.py": "_NAMES_IN = {'engine.core': ['Engine']}\n", file: text}


def using(text):
    return {"kv/a.py": "", "engine/a.py": text}


MODULES, UPWARD, PRIVATE = "circle of modules", "upward", "private names of others"
BREAKING = [
    (MODULES, circle_of("from .a import x"), "kv.a"),
    (MODULES, circle_of("import rosecourse.kv.a"), "kv.a"),
    (MODULES, circle_of("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"), "kv.a"),
    (MODULES, circle_of("def f():\n    from .a import x"), "kv.a"),
    (MODULES, {"decode/__init__.py": "from .step import x", "decode/step.py": "from . import BEST"}, "decode.step"),
    (UPWARD, importing("kv/a.py", "from ..engine.core import x"), "kv.a imports engine.core"),
    (UPWARD, importing("models/a.py", "from rosecourse.engine import core"), "models.a imports engine.core"),
    (UPWARD, importing("lab/checking/a.py", "from ..checks.a import x"), "lab.checking.a imports lab.checks.a"),
    (UPWARD, importing("commands/b.py", "from ..__main__ import main"), "commands.b imports __main__"),
    (UPWARD, importing("kv/a.py", "from rosecourse import Engine"), "kv.a imports engine.core"),  # handed on
    (PRIVATE, using("def f(pool):\n    return pool._free"), " pool._free"),
    (PRIVATE, using("def f(self):\n    return self.pool._free[0]"), " self.pool._free"),
    (PRIVATE, using("from ..kv.a import _free"), " _free"),
    (PRIVATE, using("from ..kv import a\na._free()"), " a._free"),
]


@pytest.mark.parametrize(("rule", "files", "said"), BREAKING)
def test_what_breaks_a_rule_is_told(tmp_path, rule, files, said):
    complaints = broken(build(tmp_path, files))
    complaints.pop("too large", None)
    assert complaints.keys() == {rule}
    assert any(one.endswith(said) for one in complaints[rule])


def test_a_circle_of_rooms_needs_no_circle_of_modules(tmp_path):
    files = {"kv/a.py": "from ..decode.b import x", "decode/c.py": "from ..kv.d import y"}
    complaints = broken(build(tmp_path, files | dict.fromkeys(("decode/b.py", "kv/d.py"), "")))
    assert set(complaints["circle of rooms"]) == {"kv", "decode"}
    assert MODULES not in complaints


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def __init__(self):\n        self._b = 1\n    def like(self, a):\n        return a._b == 1",
        "class A:\n    _b: int = 1\ndef f(a):\n    return a._b",
        "class A(B):\n    def f(self):\n        return super()._f() + self._g",
        "def f(row):\n    return row._replace(x=1), row.__class__, row._repr_html_()",
        "from torch.utils import _python_dispatch",  # not ours to change
    ],
)
def test_private_names_of_its_own_are_a_modules_own_affair(tmp_path, text):
    assert "private names of others" not in broken(build(tmp_path, {"engine/a.py": text}))
