"""The exercises: each lesson's part without its idea, built from the ladder's sources so that the two cannot drift.

An exercise is the part as it is *before* the lesson, under another name, so that the untouched cell runs and makes the
right tokens; in the first lessons it derives from a class of the ladder and has the methods that the lesson is about.
What is said about a lesson is in its course.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from textwrap import dedent, indent, wrap
from typing import Any

from ... import kernels
from ...lessons import lesson
from ...pages.source import narrowed
from ..course import course_of
from ..course.form import Course, Exercise, KernelCode

LINE_LENGTH = 120
ALIASES = {"triton.language": "tl", "torch.nn.functional": "F"}  # module -> the name by which everybody knows it


def _course(number: str) -> Course:
    return course_of(number, "exercise")


def introduction(number: str) -> str:
    """Markdown that stands above the exercise: what to do, how hard it is, and how long it takes."""
    asked = _course(number).exercise
    stars = "★" * asked.difficulty + "☆" * (3 - asked.difficulty)
    return f"**Exercise** · difficulty {stars} · about {asked.minutes} minutes\n\n{asked.text}\n"


def exercise(number: str) -> str:
    """Source of the exercise cell of a lesson: imports, and a class that behaves as the part before the lesson.

    Comments and docstrings are as narrow as its notebook's cells. The formatter of notebooks wraps the code there.
    """
    course, rung = _course(number), lesson(number)
    asked, of_kernels = course.exercise, course.exercise.kernel_code
    before, after = course.begins_as(rung.before), course.ends_as(rung.after)
    if asked.given:
        pairs = asked.methods.items()
        methods = [_stub(_member(after, name), body) if body else _member(before, name) for name, body in pairs]
        kernels_beside = _beside(before, asked.beside[0])
        return narrowed(_derived(asked, after, asked.docstring, methods, _empty_kernels(of_kernels), kernels_beside))
    code = "".join(f"@triton.jit\ndef {kernel}():\n    pass\n\n\n" for kernel in of_kernels.kernels)
    code += _beside(before, asked.beside[0]) + _stubs(of_kernels, of_kernels.functions)
    code += _renamed(before, asked.name, asked.docstring)
    return narrowed(_imports((before, after), asked, code, asked.wanted) + "\n\n" + code)


def solution(number: str) -> str:
    """Source of a cell with the part as it is after the lesson, under the name that the exercise has."""
    course = _course(number)
    asked, after = course.exercise, course.ends_as(lesson(number).after)
    of_kernels = asked.kernel_code
    written = [_functions(_kernel_file(of_kernels))[name][1] for name in of_kernels.kernels]
    if asked.given:
        methods = [_member(after, name) for name in vars(after) if _is_new(name, after, asked)]
        return _derived(asked, after, "", methods, written, _beside(after, asked.beside[1]))
    pairs = zip(of_kernels.kernels.values(), written, strict=True)
    code = "".join(f"{decorator}\n{kernel}\n\n" for decorator, kernel in pairs)
    code += _stubs(of_kernels, of_kernels.launches) + _beside(after, asked.beside[1])
    code += "".join(f"{helper}\n\n\n" for helper in _classes_beside(after))
    code += _renamed(after, asked.name, inspect.getdoc(after) or "")
    return _imports((after,), asked, code) + "\n\n" + code


def hints(number: str) -> str:
    """Markdown that folds open in three steps, each within the one before: a question, the approach, the code.

    Like the exercise, the code is narrow in its comments and docstrings, and wrapped by the formatter of notebooks.
    """
    asked = _course(number).exercise
    code = f"```python\n{narrowed(solution(number))}```"
    steps = (("A question", asked.look), ("The approach", asked.do), ("The code", code))
    text = ""
    for title, body in reversed(steps):
        text = f"<details><summary>{title}</summary>\n\n{body}\n{text and chr(10) + text}\n</details>"
    return text + "\n"


# -- a class that derives from one of the ladder ----------------------------------------------------------------------


def _is_new(name: str, after: type, asked: Exercise) -> bool:
    """Whether the learner writes this member of the class after the lesson, or the given class lacks it."""
    return name in asked.methods or (callable(vars(after)[name]) and not hasattr(asked.given, name))


def _derived(
    asked: Exercise, after: type, docstring: str, methods: Iterable[str], written: Iterable[str], beside: str
) -> str:
    """A cell with a class that derives from the given one: imports, kernels with their launches, the methods."""
    given: Any = asked.given
    decorated = zip(asked.kernel_code.kernels.values(), written, strict=True)
    code = "".join(f"{decorator}\n{kernel}\n\n" for decorator, kernel in decorated)
    code += _stubs(asked.kernel_code, asked.kernel_code.launches) + beside
    code += f"class {asked.name}({given.__name__}):\n"
    code += f"{_docstring(docstring)}\n" if docstring else ""
    code += "\n".join(indent(method, "    ") for method in methods)
    return _imports((after, given), asked, code, asked.wanted) + "\n\n" + code


def _empty_kernels(of_kernels: KernelCode) -> list[str]:
    """The kernels that the learner writes: their signatures, and no body."""
    functions = _functions(_kernel_file(of_kernels))
    return [_head(functions[name][1]) + "    pass  # your kernel\n" for name in of_kernels.kernels]


# -- from the sources -------------------------------------------------------------------------------------------------


def _parsed(source: str) -> Any:
    """The class or the function that a source begins with."""
    return ast.parse(source).body[0]


def _head(source: str) -> str:
    """A function down to its docstring or its body."""
    return "".join(source.splitlines(keepends=True)[: _parsed(source).body[0].lineno - 1])


def _stub(source: str, body: str) -> str:
    """A function with the signature of `source`, the first line of its docstring, and another body."""
    first = (ast.get_docstring(_parsed(source), clean=False) or "").splitlines()[0]
    return f'{_head(source)}    """{first}"""\n{indent(dedent(body).strip(), "    ")}\n'


def _stubs(of_kernels: KernelCode, bodies: Any) -> str:
    """Functions of a file of kernels with other bodies."""
    functions = _functions(_kernel_file(of_kernels))
    return "".join(_stub(functions[name][1], body) + "\n\n" for name, body in bodies.items())


def _renamed(part: type, name: str, docstring: str) -> str:
    """A class's source under another name and with another docstring."""
    source = inspect.getsource(part)
    old = ast.get_docstring(_parsed(source), clean=False)
    source = source.replace(f"class {part.__name__}:", f"class {name}:", 1)
    return source.replace(f'"""{old}"""', _docstring(docstring).strip(), 1)


def _docstring(text: str) -> str:
    """The docstring of a class, with wrapped paragraphs."""
    space = " " * 4
    first, *paragraphs = text.split("\n\n")
    if not paragraphs:
        return f'{space}"""{first}"""\n'
    lines = "\n\n".join("\n".join(wrap(p, LINE_LENGTH - len(space))) for p in paragraphs)
    return f'{space}"""{first}\n\n{indent(lines, space)}\n{space}"""\n'


def _member(part: type, name: str) -> str:
    return dedent(inspect.getsource(vars(part)[name]))


def _classes_beside(part: type) -> list[str]:
    """The sources of the classes of its own file that a part makes objects of, or says that it does."""
    text, own = Path(inspect.getfile(part)).read_text(encoding="utf-8"), inspect.getsource(part)
    used = {node.id for node in ast.walk(ast.parse(own)) if isinstance(node, ast.Name)}
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [ast.get_source_segment(text, node) or "" for node in classes if node.name in used]


def _beside(part: type, names: Iterable[str]) -> str:
    """Kernels of the file beside that of a part, with their decorators."""
    functions = _functions(_file_beside(part)) if names else {}
    return "".join(f"{''.join(functions[name])}\n\n" for name in names)


def _file_beside(part: type) -> Path:
    return Path(inspect.getfile(part)).with_name("operation_kernels.py")


def _kernel_file(of_kernels: KernelCode) -> Path:
    return Path(kernels.__file__).with_name(f"{of_kernels.module or '__init__'}.py")


def _functions(file: Path) -> dict[str, tuple[str, str]]:
    """The functions of a file by name: their decorators, and their sources without these."""
    text, found = file.read_text(encoding="utf-8"), {}
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            source = "".join(lines[node.lineno - 1 : node.end_lineno])
            found[node.name] = "".join(lines[first - 1 : node.lineno - 1]), source
    return found


# -- imports ----------------------------------------------------------------------------------------------------------


def _imports(parts: Iterable[type], asked: Exercise, code: str, wanted: Iterable[str] = ()) -> str:
    """Absolute imports of the names that `code` uses, as the modules of its parts and kernels do, in ruff's order.

    wanted: names that the untouched code does not use, but its reader is going to.
    """
    origins: dict[str, str] = {}
    if asked.kernel_code.module:
        origins |= _origins(_kernel_file(asked.kernel_code), f"{kernels.__name__}.{asked.kernel_code.module}")
    for part in parts:
        if asked.beside[0]:
            origins |= _origins(_file_beside(part), part.__module__)
        origins |= _origins(Path(inspect.getfile(part)), part.__module__)
    tree = ast.parse(code)
    names_in = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = {node.id for node in names_in} - {node.id for node in names_in if isinstance(node.ctx, ast.Store)}
    used -= {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    by_module: dict[tuple[bool, str], list[str]] = {}  # a module itself has a line of its own
    for name in sorted((used & origins.keys()).union(wanted)):
        by_module.setdefault((origins[name] != name, origins[name]), []).append(name)
    lines = []
    for (_, module), names in by_module.items():
        line = _import_line(module, names) + "  # noqa: F401" * (not used.issuperset(names))
        group = 0 if module.split(".")[0] in sys.stdlib_module_names else 1 + module.startswith("rosecourse")
        lines.append((group, line.startswith("from "), module, line))
    groups = groupby(sorted(lines), key=lambda line: line[0])
    return "\n\n".join("\n".join(line[-1] for line in group) for _, group in groups) + "\n"


def _import_line(module: str, names: list[str]) -> str:
    if names == [module]:
        return f"import {module}"
    if module in ALIASES:
        return f"import {module} as {ALIASES[module]}"
    names = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))  # as ruff sorts them
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _origins(file: Path, module: str) -> dict[str, str]:
    """Name -> the absolute module that a file of ours, known as `module`, imports it from, or that it is itself."""
    origins: dict[str, str] = {}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    only_with_triton = [node for outer in body if isinstance(outer, ast.If) for node in outer.body]
    for node in (*body, *only_with_triton):
        if isinstance(node, ast.Import):
            origins |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.rsplit(".", node.level)[0] if node.level else ""
            origin = ".".join(filter(None, (package, node.module)))  # `from . import x` names no module
            origins |= {alias.name: origin for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            origins[node.name] = module
        elif isinstance(node, ast.Assign):
            targets = [name for target in node.targets for name in ast.walk(target)]
            origins |= {name.id: module for name in targets if isinstance(name, ast.Name)}
    return origins
