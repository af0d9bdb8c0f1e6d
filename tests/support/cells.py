"""A learner's cell, run as a notebook runs it; and what is true of the exercise and the solution of every lesson."""

import linecache
import zlib

from rosecourse.lab import check
from rosecourse.lab.course import course_of
from rosecourse.lab.exercises.cells import exercise, solution
from tests.support.commands import lab


def part_in(source, name):
    """What the cell defines by this name; Triton reads the source of a kernel, so it is put where Python looks."""
    space, file = {"__name__": "__main__"}, f"<cell {zlib.crc32(source.encode())}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), space)
    return space[name]


def exercise_of(number):
    """The class of a lesson's untouched exercise."""
    return part_in(exercise(number), course_of(number).exercise.name)


def solution_of(number):
    """The class of a lesson's solution."""
    return part_in(solution(number), course_of(number).exercise.name)


def assert_untouched_is_right(number):
    """It lacks nothing but the lesson's idea. Returns what the verdict says."""
    name, verdict = course_of(number).exercise.name, check(exercise_of(number), number)
    assert str(verdict).startswith(f"✗ {name}, lesson {number}: correct, but without the idea of the lesson.")
    return str(verdict)


def command_on_solution(number, folder, capsys):
    """`rosecourse lab` on a file with the solution, which passes. Returns what the command says."""
    name, file = course_of(number).exercise.name, folder / "mine.py"
    file.write_text(solution(number))
    assert lab.main([f"{file}:{name}", "--lesson", number, "--no-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"✓ {name}, lesson {number}: passed.")
    return said
