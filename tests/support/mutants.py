"""Mutation testing: the code is changed in one small way after another, and a test must fail each time.

`make mutants` runs it with mutmut; pyproject.toml says over which files, and which tests judge. To mutmut's changes
come some of our own. Not changed are docstrings, annotations, decorated functions, `len(...)`, `isinstance(...)` and
what an error says. A test that hangs or crashes has noticed.

tests/support/survivors.toml has the reason for each mutant that survives. The exit code is 1 if too few are killed.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
from mutmut.__main__ import cli
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.mutators import mutation_operators
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

LEAST = 0.9  # of all mutants
KILLED = {"killed", "timeout", "segfault"}
REASONS = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text())


def without_statement(node: cst.Expr | cst.Raise | cst.Del) -> Iterator[cst.Pass]:
    """A call whose value is not used, a `del` or a `raise` is left out."""
    if not (isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString | cst.Yield)):
        yield cst.Pass()


def negated(node: cst.If) -> Iterator[cst.If]:
    """`if a:` becomes `if not (a):`."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    space = cst.SimpleWhitespace(" ")
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test), whitespace_before_test=space)


def without_value(node: cst.Return) -> Iterator[cst.Return]:
    """`return a` becomes `return None`."""
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value in ("None", "False")):
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))


def without_filter(node: cst.CompFor) -> Iterator[cst.CompFor]:
    """`for a in b if c` becomes `for a in b`."""
    if node.ifs:
        yield node.with_changes(ifs=[])


OURS = [
    (cst.Expr, without_statement),
    (cst.Raise, without_statement),
    (cst.Del, without_statement),
    (cst.If, negated),
    (cst.Return, without_value),
    (cst.CompFor, without_filter),
]


def mutated_files() -> Iterator[SourceFileMutationData]:
    """What mutmut has written down of each file that it changed."""
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        if data.exit_code_by_key:
            yield data


def try_survivors_again() -> None:
    """mutmut keeps the verdicts of an earlier run while a function is the same; the tests may be others by now."""
    for data in mutated_files():
        for name, code in data.exit_code_by_key.items():
            if status_by_exit_code[code] not in KILLED:
                data.exit_code_by_key[name] = None
        data.save()


def describe(name: str, path: Path) -> tuple[int, str]:
    """The line of a mutant in its file, and what was changed: `Class.function: old -> new`."""
    function, of_class = orig_function_and_class_names_from_key(name)
    lines = get_diff_for_mutant(name, path=path).splitlines()[3:]
    old, new = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
    place = f"{of_class}.{function}" if of_class else function
    return line_of(old[0], function, path), f"{place}: {' '.join(old)} -> {' '.join(new)}"


def line_of(text: str, function: str, path: Path) -> int:
    """The first line of a function of this name that reads like this."""
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for number in range(node.lineno, node.end_lineno + 1):
                if lines[number - 1].strip() == text:
                    return number
    return 0


def report() -> bool:
    """Print the figures of each file, and the survivors with their reasons; returns whether enough are killed."""
    total: Counter[str] = Counter()
    for data in mutated_files():
        verdicts = {n: status_by_exit_code[code] for n, code in data.exit_code_by_key.items() if code is not None}
        counts = Counter(verdicts.values())
        total += counts
        print(f"\n{data.path}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
        for name, verdict in verdicts.items():
            if verdict not in KILLED:
                line, change = describe(name, data.path)
                print(f"  {verdict}: {data.path}:{line} {change}")
                print(f"      {REASONS.get(str(data.path), {}).get(change, 'NO REASON IS LISTED')}")
    killed = sum(total[verdict] for verdict in KILLED)
    share = killed / total.total()
    print(f"\n{killed} of {total.total()} mutants killed, {share:.1%}: at least {LEAST:.0%} are wanted")
    return share >= LEAST


if __name__ == "__main__":
    mutation_operators.extend(OURS)
    try_survivors_again()
    cli(["run", *sys.argv[1:]], standalone_mode=False)
    sys.exit(0 if report() else 1)
