"""Put the end into each lesson: the link to its hunt, the cell that notes that it was read, and its neighbours.

python docs/notebook_feet.py
"""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rosecourse import lesson
from rosecourse.desk.notebooks import END, HUNTS, START, notebooks_in
from rosecourse.pages.shared import lessons_on

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def finish_code(*numbers: str) -> str:
    """The last code cell of a page with these lessons. It runs by itself, too, after a restart."""
    return "from rosecourse.lab import finish\n\n" + "\n".join(f'finish("{number}")' for number in numbers)


def title_of(number: str) -> str:
    """Of a lesson, or of the page that looks back, which has that of its file."""
    return END[4:].partition(".")[0].replace("_", " ") if number == END[:3] else lesson(number).title


def hunt_link(*numbers: str) -> str:
    """A page's links to the bug hunts of its lessons."""
    links = ", ".join(f"[hunt {number}]({HUNTS}/{number}_hunt.ipynb)" for number in numbers)
    return f"**Bug hunt{'s' if numbers[1:] else ''}:** {links}"


def foot(number: str, files: dict[str, str]) -> str:
    """Links to the next lesson, the previous one and the start page. files: of the lessons, by their numbers."""
    numbers = ["", *sorted(files), ""]
    place = numbers.index(number)
    near = {"Next": numbers[place + 1], "Previous": numbers[place - 1]}
    links = [f"**{name}:** [{n}, {title_of(n)}]({files[n]})" for name, n in near.items() if n]
    return " · ".join([*links, f"[Start page]({START})"])


def with_end(notebook: NotebookNode, number: str, files: dict[str, str]) -> None:
    """Write the cells, anew where they are there already; what the code cell showed is kept."""
    there = {cell.id: cell for cell in notebook.cells}
    finish = there.get("finish", nbformat.v4.new_code_cell(id="finish"))
    numbers = lessons_on(Path(files[number]))
    finish.source = finish_code(*numbers)
    last = nbformat.v4.new_markdown_cell(foot(number, files), id="foot")
    ends = [last] if number == END[:3] else [finish, last]  # which is no lesson, and so not counted
    if number != END[:3] and lesson(number).changes:
        ends.insert(0, nbformat.v4.new_markdown_cell(hunt_link(*numbers), id="hunt"))
    notebook.cells = [cell for cell in notebook.cells if cell.id not in [end.id for end in ends]] + ends


if __name__ == "__main__":
    files = {path.name[:3]: path.name for path in notebooks_in(NOTEBOOKS) if path.name != START}
    for number, name in files.items():
        notebook = nbformat.read(NOTEBOOKS / name, 4)
        with_end(notebook, number, files)
        nbformat.write(notebook, NOTEBOOKS / name)
