"""Put the end into each notebook: the cell that notes that a lesson was read, and the links to its neighbours.

python docs/notebook_feet.py
"""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from rosecourse import lesson
from rosecourse.desk.notebooks import notebooks_in
from rosecourse.desk.places import END, START

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
FINISH, FOOT = "finish", "foot"  # the ids of the two cells


def finish_code(number: str) -> str:
    """The last code cell of a lesson. It runs by itself, too, after a restart."""
    return f'from rosecourse.lab import finish\n\nfinish("{number}")'


def title_of(number: str) -> str:
    """Of a lesson, or of the page that looks back, which has that of its file."""
    return END[4:].partition(".")[0].replace("_", " ") if number == END[:3] else lesson(number).title


def foot(number: str, files: dict[str, str]) -> str:
    """Links to the next lesson, the previous one and the start page. files: of the lessons, by their numbers."""
    numbers = sorted(files)
    place = numbers.index(number)
    near = {"Next": numbers[place + 1 : place + 2], "Previous": numbers[max(place - 1, 0) : place]}
    links = [f"**{name}:** [{n}, {title_of(n)}]({files[n]})" for name, found in near.items() for n in found]
    return " · ".join([*links, f"[Start page]({START})"])


def with_end(notebook: NotebookNode, number: str, files: dict[str, str]) -> None:
    """Write the two cells, anew where they are there already; what the first one showed is kept."""
    ends = {FINISH: finish_code(number), FOOT: foot(number, files)}
    if number == END[:3]:  # no lesson, and so not counted
        del ends[FINISH]
    there = {cell.id: cell for cell in notebook.cells if cell.id in (FINISH, FOOT)}
    there.setdefault(FINISH, nbformat.v4.new_code_cell(id=FINISH))
    there.setdefault(FOOT, nbformat.v4.new_markdown_cell(id=FOOT))
    notebook.cells = [cell for cell in notebook.cells if cell.id not in ends]
    for name, source in ends.items():
        there[name].source = source
        notebook.cells.append(there[name])


def main() -> None:
    files = {path.name[:3]: path.name for path in notebooks_in(NOTEBOOKS) if path.name != START}
    for number, name in files.items():
        notebook = nbformat.read(NOTEBOOKS / name, 4)
        with_end(notebook, number, files)
        nbformat.write(notebook, NOTEBOOKS / name)


if __name__ == "__main__":
    main()
