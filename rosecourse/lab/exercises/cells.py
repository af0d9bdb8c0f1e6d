"""The exercises: each lesson's part without its idea, built from the ladder's sources so that the two cannot drift.

An exercise is the part as it is *before* the lesson, under another name, so that the untouched cell runs and makes the
right tokens. The first lessons say in comments what must hold, and may bring a method of the lesson with a plain body
that is right and slow; the later ones say less and less. What is said about a lesson is in its course.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent, indent, wrap
from typing import TypeVar

from ... import kernels
from ...errors import LessonError
from ...lessons import lesson
from ...pages.source import narrowed
from ..course import course_of
from ..course.form import Course, Exercise, KernelCode

LINE_LENGTH = 120
ALIASES = {"triton.language": "tl", "torch.nn.functional": "F"}  # module -> the name by which everybody knows it
Definition = TypeVar("Definition", ast.ClassDef, ast.FunctionDef)


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
    asked, kernel_code = course.exercise, course.exercise.kernel_code
    before, after = course.begins_as(rung.before), course.ends_as(rung.after)
    if asked.given:
        bodies = {name: _stub(_member(after, name), body) if body else "" for name, body in asked.methods.items()}
        methods = [bodies[name] or _member(before, name) for name in asked.methods]
        return narrowed(_derived(asked, after, asked.docstring, methods, _empty_kernels(kernel_code)))
    code = _renamed(before, asked.name, asked.docstring)
    for member, body in asked.stubs.items():
        code += "\n" + indent(_stub(_member(after, member), body), "    ")
    for function, body in kernel_code.functions.items():
        code = _stub(_kernel_source(kernel_code, function), body) + "\n\n" + code
    code = "".join(_functions_of(before, asked.beside.begins)) + code
    for kernel in kernel_code.kernels:
        code = f"@triton.jit\ndef {kernel}():\n    pass\n\n\n{code}"
    for anchor, goal in asked.goals.items():
        code = _with_comment(code, anchor, goal)
    return narrowed(_imports((before, after), asked, code, asked.wanted) + "\n\n" + code)


def solution(number: str) -> str:
    """Source of a cell with the part as it is after the lesson, under the name that the exercise has."""
    course = _course(number)
    kernel_code, after = course.exercise.kernel_code, course.ends_as(lesson(number).after)
    if course.exercise.given:
        methods = [_member(after, name) for name in vars(after) if _is_new(name, after, course.exercise)]
        kernels_written = [_kernel_source(kernel_code, name) for name in kernel_code.kernels]
        return _derived(course.exercise, after, "", methods, kernels_written)
    docstring = _docstring_of(_definition(inspect.getsource(after), ast.ClassDef))
    code = _renamed(after, course.exercise.name, inspect.cleandoc(docstring))
    code = "".join(f"{helper}\n\n\n" for helper in _classes_beside(after)) + code
    code = "".join(_functions_of(after, course.exercise.beside.ends)) + code
    for function, body in kernel_code.launches.items():
        code = _stub(_kernel_source(kernel_code, function), body) + "\n\n" + code
    for kernel, decorator in kernel_code.kernels.items():
        code = f"{decorator}\n{_kernel_source(kernel_code, kernel)}\n\n{code}"
    return _imports((after,), course.exercise, code, ()) + "\n\n" + code


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


def _is_new(name: str, after: type, asked: Exercise) -> bool:
    """Whether the learner writes this member of the class after the lesson, or the given class lacks it."""
    return name in asked.methods or (callable(vars(after)[name]) and not hasattr(asked.given, name))


def _derived(asked: Exercise, after: type, docstring: str, methods: Sequence[str], kernels: Sequence[str]) -> str:
    """A cell with a class that derives from the given one: imports, kernels with their launches, the methods."""
    if asked.given is None:
        raise LessonError(f"the exercise of {asked.name} has no class to derive from")
    code_of = asked.kernel_code
    decorated = zip(code_of.kernels.values(), kernels, strict=True)
    code = "".join(f"{decorator}\n{kernel}\n\n" for decorator, kernel in decorated)
    for function, body in code_of.launches.items():
        code += _stub(_kernel_source(code_of, function), body) + "\n\n"
    code += f"class {asked.name}({asked.given.__name__}):\n"
    code += f"{_docstring(docstring, 4)}\n" if docstring else ""
    code += "\n".join(indent(method, "    ") for method in methods)
    return _imports((after, asked.given), asked, code, asked.wanted) + "\n\n" + code


def _empty_kernels(kernel_code: KernelCode) -> list[str]:
    """The kernels that the learner writes: their signatures, and no body."""
    found = []
    for name in kernel_code.kernels:
        source = _kernel_source(kernel_code, name)
        function = _definition(source, ast.FunctionDef)
        head = source.splitlines(keepends=True)[: function.body[0].lineno - 1]
        found.append("".join(head) + "    pass  # your kernel\n")
    return found


# -- from the sources ---------------------------------------------------------------------------------------------


def _definition(source: str, kind: type[Definition]) -> Definition:
    """The class or the function that a source begins with. Raises `LessonError` for another source."""
    node = ast.parse(source).body[0]
    if not isinstance(node, kind):
        raise LessonError(f"a source of a course begins with a {type(node).__name__}, not with a {kind.__name__}")
    return node


def _docstring_of(node: ast.ClassDef | ast.FunctionDef) -> str:
    """A docstring as it stands in the source. Raises `LessonError` where there is none."""
    docstring = ast.get_docstring(node, clean=False)
    if docstring is None:
        raise LessonError(f"{node.name} has no docstring, which its exercise needs")
    return docstring


def _renamed(part: type, name: str, docstring: str) -> str:
    """A class's source under another name and with another docstring."""
    source = inspect.getsource(part)
    old = _docstring_of(_definition(source, ast.ClassDef))
    source = _once(source, f"class {part.__name__}:", f"class {name}:")
    return _once(source, f'"""{old}"""', _docstring(docstring, 4).strip())


def _docstring(text: str, spaces: int) -> str:
    """A docstring of wrapped paragraphs, indented."""
    space = " " * spaces
    first, *paragraphs = text.split("\n\n")
    if not paragraphs:
        return f'{space}"""{first}"""\n'
    lines = "\n\n".join("\n".join(wrap(p, LINE_LENGTH - spaces)) for p in paragraphs)
    return f'{space}"""{first}\n\n{indent(lines, space)}\n{space}"""\n'


def _classes_beside(part: type) -> list[str]:
    """The sources of the other classes that stand in the file of a part and in front of it: what it is written with."""
    text = Path(inspect.getfile(part)).read_text(encoding="utf-8")
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    (number,) = [n for n, node in enumerate(classes) if node.name == part.__name__]
    return [ast.get_source_segment(text, node) or "" for node in classes[:number]]


def _beside(part: type, name: str) -> Path:
    """A file that lies beside that of a part."""
    return Path(inspect.getfile(part)).with_name(f"{name}.py")


def _functions_of(part: type, name: str) -> Iterator[str]:
    """The sources of all functions of such a file, with their decorators; none if the name is empty."""
    text = _beside(part, name).read_text(encoding="utf-8") if name else ""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno]) + "\n\n"


def _member(part: type, name: str) -> str:
    return dedent(inspect.getsource(vars(part)[name]))


def _stub(source: str, body: str) -> str:
    """A function with the signature of `source`, the first line of its docstring, and another body."""
    function = _definition(source, ast.FunctionDef)
    head = "".join(source.splitlines(keepends=True)[: function.body[0].lineno - 1])
    first = _docstring_of(function).splitlines()[0]
    return f'{head}    """{first}"""\n{indent(dedent(body).strip(), "    ")}\n'


def _kernel_file(kernel_code: KernelCode) -> Path:
    return Path(kernels.__file__).with_name(f"{kernel_code.module}.py")


def _kernel_source(kernel_code: KernelCode, name: str) -> str:
    """A function of a file of kernels without its decorators."""
    text = _kernel_file(kernel_code).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return "".join(text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
    raise LessonError(f"kernels/{kernel_code.module}.py has no function {name!r}")


def _with_comment(code: str, anchor: str, text: str) -> str:
    """A comment above the one line that reads `anchor`, indented as that line."""
    lines = code.splitlines()
    places = [number for number, line in enumerate(lines) if line.strip() == anchor]
    if len(places) != 1:
        raise LessonError(f"{anchor!r} stands on {len(places)} lines of the exercise, not on one: mend its course")
    space = " " * (len(lines[places[0]]) - len(anchor))
    comment = wrap(text, LINE_LENGTH - len(space), initial_indent="# ", subsequent_indent="# ")
    lines[places[0] : places[0]] = [space + line for line in comment]
    return "\n".join(lines) + "\n"


def _once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise LessonError(f"{old!r} stands {text.count(old)} times in the source, not once")
    return text.replace(old, new)


# -- imports ------------------------------------------------------------------------------------------------------


def _imports(parts: Iterable[type], asked: Exercise, code: str, wanted: Iterable[str]) -> str:
    """Absolute imports of the names that `code` uses, as the modules of its parts and kernels do, in ruff's order.

    wanted: names that the untouched code does not use, but its reader is going to.
    """
    kernel_code, beside = asked.kernel_code, (asked.beside.begins, asked.beside.ends)
    tree = ast.parse(code)
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - defined
    origins: dict[str, str] = {}
    if kernel_code.module:
        origins |= _origins(str(_kernel_file(kernel_code)), f"{kernels.__name__}.{kernel_code.module}")
    for part in parts:
        for name in filter(None, beside):
            origins |= _origins(str(_beside(part, name)), part.__module__)
        origins |= _origins(inspect.getfile(part), part.__module__)
    lines = _import_lines(sorted((used & set(origins)).union(wanted)), origins, set(wanted) - used)
    groups = ("bisect collections contextlib itertools operator typing", "torch triton", "rosecourse")
    lines.sort(key=lambda line: (line[1].startswith("from "), line[0]))
    sorted_groups = [[line for line in lines if line[0].split(".")[0] in group.split()] for group in groups]
    return "\n\n".join("\n".join(line for _, line in group) for group in sorted_groups if group) + "\n"


def _import_lines(names: Iterable[str], origins: dict[str, str], unused: set[str]) -> list[tuple[str, str]]:
    """(module, line) for each module that some of the names come from; a linter is told of those that are not used."""
    by_module: dict[tuple[str, bool], list[str]] = {}  # a module itself has a line of its own
    for name in names:
        by_module.setdefault((origins[name], origins[name] == name), []).append(name)
    remarks = {module: "  # noqa: F401" * (not unused.isdisjoint(names)) for module, names in by_module.items()}
    return [(module[0], _import_line(module[0], names) + remarks[module]) for module, names in by_module.items()]


def _import_line(module: str, names: list[str]) -> str:
    if names == [module]:
        return f"import {module}"
    if module in ALIASES:
        return f"import {module} as {ALIASES[module]}"
    names = sorted(names, key=_by_kind)
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _by_kind(name: str) -> tuple[bool, bool, str]:
    """Constants come first, then classes, then functions, as ruff sorts them."""
    return not name.isupper(), not name[0].isupper(), name


def _origins(file: str, module: str) -> dict[str, str]:
    """Name -> the absolute module that a file of ours, known as `module`, imports it from, or that it is itself."""
    origins: dict[str, str] = {}
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
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
