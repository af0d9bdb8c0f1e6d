"""Small changes of source that a test should notice: an operator, a number, a condition, a statement left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
OTHER_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutation(NamedTuple):
    """Bytes start to end of a file's source, which become `new`; on line `line`."""

    file: str
    line: int
    start: int
    end: int
    new: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        old = " ".join(source[self.start : self.end].decode().split())
        return f"{self.file}:{self.line}  {old}  ->  {self.new}"


def mutations(file: str, source: bytes) -> Iterator[Mutation]:
    """All changes of a file. Not changed are docstrings and other text, annotations, decorated functions of kernels,
    protocols, and what an error says."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    for node, new in _changes(ast.parse(source)):
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        yield Mutation(file, node.lineno, start, end, new)


def _swapped(node: ast.AST, **changed: object) -> str:
    """The source of a node with another operator."""
    return ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **changed}))


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
        return
    if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
        return
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        if isinstance(node, ast.Raise):
            yield node, "pass"
        return
    yield from _of_node(node)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _of_node(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield node, _swapped(node, ops=[SWAPPED[type(op)]()])
        case ast.BinOp(op=op, left=left, right=right) if type(op) in SWAPPED:
            if not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right)):
                yield node, _swapped(node, op=SWAPPED[type(op)]())
        case ast.BoolOp(op=op, values=[_, _]) | ast.AugAssign(op=ast.Add() | ast.Sub() as op):
            yield node, _swapped(node, op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, ast.unparse(operand)
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Call(func=ast.Name(id=name) as function) if name in OTHER_CALLS:
            yield function, OTHER_CALLS[name]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=[first, *_]):
            yield first, "True"
        case ast.Expr(value=ast.Call()) | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Return(value=ast.AST() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield value, "None"
        case ast.Continue():
            yield node, "break"
