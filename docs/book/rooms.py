"""Sphinx extension: the modules of the package, a page for each folder that docs/architecture.md names.

`rooms` lists the pages, `room` has the modules of a folder, `public-names` what the package itself hands on.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from docstrings import marked_up
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import rosecourse

PACKAGE = Path(rosecourse.__file__).parent
ARCHITECTURE = Path(__file__).resolve().parents[1] / "architecture.md"
TOP = "."  # the modules that are in no folder
OF_TOP = "says what can be set, and what can go wrong."
OBJECTS = {
    "BASELINE": "the parts of lesson 035, from which the course starts; a `DecodeParts`",
    "BEST": "the best version of each part, as after the last lesson; a `DecodeParts`, and an engine's default",
    "LESSONS": "the ladder: all lessons in their order, each a `Lesson` with the parts before and after it",
}


def pages() -> dict[str, tuple[str, str, str]]:
    """Title, room and a sentence of each page, in the order of docs/architecture.md: from the ground up."""
    rooms = re.findall(r"(?m)^\* `(\w+)/` (.*(?:\n  .*)*)", ARCHITECTURE.read_text())
    told = {room: (room, room, " ".join(text.split())) for room, text in rooms}
    return {"package": ("config and errors", TOP, OF_TOP), **told}


def write_pages(app: Sphinx) -> None:
    """Write the pages to where Sphinx looks for them."""
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    for page in folder.iterdir():
        page.unlink()
    for name, (title, room, _) in pages().items():
        (folder / f"{name}.rst").write_text(f"{title}\n{'=' * len(title)}\n\n.. room:: {room}\n")


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
        return f"* ``{name}``: {marked_up(OBJECTS[name])}"
    first, _, _ = inspect.getdoc(thing).partition("\n\n")
    sentence = re.split(r"(?<=[.!?]) ", " ".join(first.split()))[0]
    return f"* :py:obj:`{name} <{thing.__module__}.{thing.__qualname__}>`: {marked_up(sentence)}"


class PublicNames(SphinxDirective):
    """What `import rosecourse` gives, by the alphabet."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(map(public_name, rosecourse.__all__)))


class Rooms(SphinxDirective):
    """The list of the pages, with what each room is for."""

    def run(self) -> list[nodes.Node]:
        lines = [f"* :doc:`{title} </api/{name}>` {marked_up(text)}" for name, (title, _, text) in pages().items()]
        lines += ["", ".. toctree::", "   :hidden:", "", *(f"   /api/{name}" for name in pages())]
        return self.parse_text_to_nodes("\n".join(lines))


class Room(SphinxDirective):
    """The modules of a folder of the package, a section each: `.. room:: kv`, or `.. room:: .` for the loose ones.

    Of a folder that has modules only in folders of its own, such as the lab, it is what its package hands on.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        room = self.arguments[0]
        modules = modules_of(room)
        if room == TOP:
            lines = []
        elif any(module.count(".") == 1 for module in modules):
            lines = [f".. automodule:: rosecourse.{room}", "   :no-members:", ""]
        else:
            lines, modules = [f".. automodule:: rosecourse.{room}", "   :imported-members:", ""], []
        for module in modules:
            lines += section(module, f".. automodule:: rosecourse.{module}")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    app.add_directive("public-names", PublicNames)
    app.add_directive("rooms", Rooms)
    app.add_directive("room", Room)
    return {"parallel_read_safe": True}
