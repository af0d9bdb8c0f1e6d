"""Rules of the code that tests can hold: what is public, what is imported when, who reads the environment."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rosecourse

PACKAGE = Path(rosecourse.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_public_name_is_there_and_documented():
    for name in rosecourse.__all__:
        thing = getattr(rosecourse, name)
        assert thing.__doc__ or name in ("BASELINE", "BEST", "LESSONS"), name


@pytest.mark.grid
@pytest.mark.parametrize(
    ("work", "slow"),
    [
        ("", ["torch", "transformers", "triton"]),
        # Each takes longer than all that the work needs.
        (
            "rosecourse.InferenceEngine(rosecourse.load_model(device='cpu')).generate('Hello')",
            ["transformers.modeling_utils", "torch._dynamo", "pandas", "matplotlib"],
        ),
        (
            "import torch, rosecourse.measure.counters as counters\nwith counters.watch(): torch.zeros(1)",
            ["torch._dynamo"],
        ),
    ],
    ids=["the package", "an engine", "a count of operations"],
)
def test_what_takes_long_to_import_is_not_imported_in_vain(work, slow):
    code = f"import sys, rosecourse\n{work}\nprint([name for name in {slow} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_globals_no_environment_and_every_module_says_what_it_is(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module docstring"
    assert not any(isinstance(node, ast.Global) for node in ast.walk(tree))
    assert not re.search(r"\bos\.(environ|getenv)\b", path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_functions_are_short_enough_to_read_at_once(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 45, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_functions_have_type_hints(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if any(ast.unparse(d).partition("(")[0].endswith("jit") for d in node.decorator_list):
                continue
            arguments = [a for a in node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]
            assert node.returns is not None, node.name
            assert all(a.annotation is not None for a in arguments), node.name
