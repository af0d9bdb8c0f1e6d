"""A lesson's exercise and its solution, read from its notebook, run as a notebook runs a cell."""

import ast
import linecache
import re
import zlib
from functools import cache
from pathlib import Path

from rosecourse.desk.notebooks import cells_of, source_of
from rosecourse.lab.exercises.own_run import given_cell
from rosecourse.pages.shared import page_of
from tests.support.commands import lab

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FOLD = "<details><summary>{}</summary>\n\n"
exercise = given_cell  # the source of a lesson's exercise
HINTS = re.compile("^" + "(.*)".join(map(FOLD.format, ("A question", "The approach", "The code"))), re.DOTALL)


def part_in(source, name=None):
    """What the cell defines by this name; Triton reads the source of a kernel, so it is put where Python looks.

    name: None is the last class.
    """
    space, file = {"__name__": "__main__"}, f"<cell {zlib.crc32(source.encode())}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), space)
    return space[name or classes_in(source)[-1].name]


def classes_in(source):
    return [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


@cache
def hints(number):
    """The question and the approach of a lesson's hints, and the code of its solution."""
    (page,) = NOTEBOOKS.glob(page_of(number))
    texts = [source_of(cell) for cell in cells_of(page)]
    (check,) = (n for n, text in enumerate(texts) if text.startswith("check(") and f'"{number}"' in text)
    text = next(text for text in texts[check:] if HINTS.match(text))
    assert text.count("</details>") == 3
    question, approach = HINTS.match(text).groups()
    return question.strip(), approach.strip(), re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


def solution(number):
    """The source of a lesson's solution."""
    return hints(number)[2]


def exercise_of(number):
    """The class of a lesson's untouched exercise."""
    return part_in(exercise(number))


def solution_of(number):
    """The class of a lesson's solution."""
    return part_in(solution(number))


def command_on_solution(number, folder, capsys):
    """`rosecourse lab` on a file with the solution, which passes. Returns what the command says."""
    name, file = solution_of(number).__name__, folder / "mine.py"
    file.write_text(solution(number))
    assert lab.main([f"{file}:{name}", "--lesson", number, "--no-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"✓ {name}, lesson {number}: passed.")
    return said
