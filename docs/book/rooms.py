"""Sphinx extension: the directives `public-names`, of the package, and `room`, for the modules of a folder of it."""

import inspect
from pathlib import Path
from typing import Any, ClassVar

from docstrings import to_rst
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import rosecourse

PACKAGE = Path(rosecourse.__file__).parent
TOP = "."


def modules_of(room: str) -> list[str]:
    """The modules in a folder of the package and in the folders inside it, by their names in the package."""
    files = (PACKAGE / room).glob("*.py" if room == TOP else "**/*.py")
    names = [path.relative_to(PACKAGE).with_suffix("").parts for path in files]
    return [".".join(parts) for parts in sorted(names) if not parts[-1].startswith("_")]


def section(title: str, body: str) -> list[str]:
    return [title, "~" * len(title), "", body, ""]


def public_name(name: str) -> str:
    """A line on what `import rosecourse` gives by a name, with a link to its place among the modules."""
    thing = getattr(rosecourse, name)
    if not callable(thing):
        kind = type(thing)
        return f"* ``{name}``: a :py:obj:`{kind.__name__} <{kind.__module__}.{kind.__qualname__}>`"
    first, _, _ = inspect.getdoc(thing).partition("\n\n")
    summary = " ".join(to_rst(first.splitlines()[:1]))
    return f"* :py:obj:`{name} <{thing.__module__}.{thing.__qualname__}>`: {summary}"


class PublicNames(SphinxDirective):
    """What `import rosecourse` gives, by the alphabet."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(map(public_name, rosecourse.__all__)))


class Room(SphinxDirective):
    """The modules of a folder of the package, a section each: `.. room:: kv`, or `.. room:: .` for the loose ones.

    :names: only what the package of the folder hands on, in its `__all__`.
    """

    required_arguments = 1
    option_spec: ClassVar = {"names": directives.flag}

    def run(self) -> list[nodes.Node]:
        room = self.arguments[0]
        lines = []
        if "names" in self.options:
            lines = [f".. automodule:: rosecourse.{room}", "   :imported-members:", ""]
        elif room != TOP:
            lines = [f".. automodule:: rosecourse.{room}", "   :no-members:", ""]
        for module in modules_of(room) if "names" not in self.options else []:
            lines += section(module, f".. automodule:: rosecourse.{module}")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("public-names", PublicNames)
    app.add_directive("room", Room)
    return {"parallel_read_safe": True}
