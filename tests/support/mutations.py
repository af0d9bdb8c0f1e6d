"""Small changes of source that a test should notice: an operator, a number, a condition, a statement left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

SWAPPED: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//", ast.And: "or", ast.Or: "and",
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
        if isinstance(new, tuple):  # the text between two nodes: an operator
            left, right, operator = new
            start, end = offset(left.end_lineno, left.end_col_offset), offset(right.lineno, right.col_offset)
            between = source[start:end].decode()
            new = "".join(c for c in between if c in "()\n") if "(" in between or ")" in between else ""
            if new:
                continue  # parentheses around an operand: another change of the line stands for it
            new = f" {operator} "
        yield Mutation(file, node.lineno, start, end, new)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, object]]:
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


def _of_node(node: ast.AST) -> Iterator[tuple[ast.AST, object]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPPED:
            yield node, (left, right, SWAPPED[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED:
            if not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right)):
                yield node, (left, right, SWAPPED[type(op)])
        case ast.BoolOp(op=op, values=[left, right]):
            yield node, (left, right, SWAPPED[type(op)])
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
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in (ast.Add, ast.Sub):
            yield node, (target, value, "-=" if isinstance(op, ast.Add) else "+=")
        case ast.Return(value=ast.AST() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield value, "None"
        case ast.Continue():
            yield node, "break"
