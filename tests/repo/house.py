"""The house that a package's source draws: modules, the rooms that they stand in, and the arrows between them.

Only the text is read, nothing is imported. A module has its dotted name inside the package: `kv.blocks`, `decode` for
decode/__init__.py, and "" for the package's own `__init__`.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

WINGS = {"lab"}  # folders whose own folders are rooms
DOORS = {"__init__", "__main__"}
PUBLIC = {
    *("_asdict", "_fields", "_make", "_replace"),  # of namedtuples, which must not take their fields' names
    *("_schema", "_version"),  # torch's, which has no other names for them
}

Graph = Mapping[str, set[str]]


class House:
    """A package in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = sorted(folder.rglob("*.py"))
        self.files = {module_name(path.relative_to(folder)): path for path in files}
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.files.items()}

    def room(self, module: str) -> str:
        """The room of a module: its folder, or for a loose module its own name."""
        path = self.files[module].relative_to(self.folder)
        folders, stem = path.parent.parts, path.stem
        return "/".join(folders[: 1 + (folders[0] in WINGS)]) if folders else stem

    @cached_property
    def rooms(self) -> set[str]:
        """The rooms that hold at least one module; a door is none."""
        return {self.room(module) for module, path in self.files.items() if path.stem not in DOORS}

    @cached_property
    def loose_files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.py"))

    @cached_property
    def lines(self) -> Counter[str]:
        """The lines of each room, empty ones and comments too."""
        counts: Counter[str] = Counter()
        for module, path in self.files.items():
            counts[self.room(module)] += len(path.read_text().splitlines())
        return counts

    @cached_property
    def imports(self) -> Graph:
        """The modules of the package that each module imports anywhere, for its types alone too."""
        return {module: set(self._imported(module)) - {module} for module in self.files}

    @cached_property
    def arrows(self) -> Graph:
        """The rooms that each room imports from."""
        graph: dict[str, set[str]] = defaultdict(set)
        for module, imported in self.imports.items():
            room = self.room(module)
            graph[room] |= {self.room(other) for other in imported} - {room}
        return graph

    def _imported(self, module: str) -> Iterator[str]:
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == self.folder.name:
                        yield self._nearest(alias.name.partition(".")[2])
            elif isinstance(node, ast.ImportFrom) and (source := self._source(module, node)) is not None:
                for alias in node.names:
                    yield self._nearest(f"{source}.{alias.name}".lstrip("."))

    def _source(self, module: str, node: ast.ImportFrom) -> str | None:
        """The module that `from .. import` names; None if it is not of this package."""
        named = node.module or ""
        if node.level == 0:
            package, _, inside = named.partition(".")
            return inside if package == self.folder.name else None
        above = module.split(".") if module else []
        is_package = self.files[module].stem == "__init__"
        above = above[: len(above) - node.level + is_package]
        return ".".join([*above, *filter(None, [named])])

    def _nearest(self, name: str) -> str:
        """The module that a name is, or else stands in; a name that the front door hands on stands behind it."""
        name = self._handed_on.get(name, name)
        while name not in self.files:
            name = name.rpartition(".")[0]
        return name

    @cached_property
    def _handed_on(self) -> dict[str, str]:
        """The module of each public name that the package's `__init__` imports when it is first used."""
        for node in self.trees[""].body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES_IN":
                return {name: module for module, names in ast.literal_eval(node.value).items() for name in names}
        return {}

    def upward(self, floors: Sequence[str]) -> list[str]:
        """The imports of modules on a higher floor; `floors` has every room from the ground up."""
        floor = {room: number for number, room in enumerate(floors)}
        return [
            f"{module} imports {other}"
            for module, imported in self.imports.items()
            for other in sorted(imported)
            if floor[self.room(other)] > floor[self.room(module)]
        ]

    @cached_property
    def private_names_of_others(self) -> list[str]:
        """The places that use a `_private` name which their own module does not define."""
        return [
            f"{self.files[module].relative_to(self.folder)}:{line} {name}"
            for module, tree in self.trees.items()
            for line, name in private_names_of_others(tree, self.folder.name)
        ]


def module_name(path: Path) -> str:
    """kv/blocks.py is `kv.blocks`, kv/__init__.py is `kv`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circle(graph: Graph) -> list[str]:
    """A circle of arrows, its first node again at its end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def private_names_of_others(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """The lines and names: `x._name` of any object but self, cls and super(), and imports inside the package."""
    own = set(own_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr) and node.attr not in own | PUBLIC and not is_own(node.value):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


def is_private(name: str) -> bool:
    """`_name`, but not `__name__`, nor `_name_` as Jupyter has it."""
    return name.startswith("_") and not name.endswith("_")


def own_names(tree: ast.Module) -> Iterator[str]:
    """What a module defines: its functions, classes, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            yield node.attr


def is_own(value: ast.expr) -> bool:
    """Whether an attribute's object is the one that the code belongs to."""
    return ast.unparse(value) in ("self", "cls", "super()")
