"""Put the end into each notebook: the cell that notes that a lesson was read, and the links to its neighbours.

python docs/notebook_feet.py
"""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rosecourse import lesson
from rosecourse.desk.notebooks import END, START, notebooks_in

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def finish_code(number: str) -> str:
    """The last code cell of a lesson. It runs by itself, too, after a restart."""
    return f'from rosecourse.lab import finish\n\nfinish("{number}")'


def title_of(number: str) -> str:
    """Of a lesson, or of the page that looks back, which has that of its file."""
    return END[4:].partition(".")[0].replace("_", " ") if number == END[:3] else lesson(number).title


def foot(number: str, files: dict[str, str]) -> str:
    """Links to the next lesson, the previous one and the start page. files: of the lessons, by their numbers."""
    numbers = ["", *sorted(files), ""]
    place = numbers.index(number)
    near = {"Next": numbers[place + 1], "Previous": numbers[place - 1]}
    links = [f"**{name}:** [{n}, {title_of(n)}]({files[n]})" for name, n in near.items() if n]
    return " · ".join([*links, f"[Start page]({START})"])


def with_end(notebook: NotebookNode, number: str, files: dict[str, str]) -> None:
    """Write the two cells, anew where they are there already; what the first one showed is kept."""
    there = {cell.id: cell for cell in notebook.cells}
    finish = there.get("finish", nbformat.v4.new_code_cell(id="finish"))
    finish.source = finish_code(number)
    last = nbformat.v4.new_markdown_cell(foot(number, files), id="foot")
    ends = [last] if number == END[:3] else [finish, last]  # which is no lesson, and so not counted
    notebook.cells = [cell for cell in notebook.cells if cell.id not in [end.id for end in ends]] + ends


if __name__ == "__main__":
    files = {path.name[:3]: path.name for path in notebooks_in(NOTEBOOKS) if path.name != START}
    for number, name in files.items():
        notebook = nbformat.read(NOTEBOOKS / name, 4)
        with_end(notebook, number, files)
        nbformat.write(notebook, NOTEBOOKS / name)
