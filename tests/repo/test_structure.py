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
def test_a_module_keeps_the_rules(path):
    """A docstring; no globals and no environment; type hints of public functions, and none too long to read."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module docstring"
    assert not any(isinstance(node, ast.Global) for node in ast.walk(tree))
    assert not re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
        assert lines <= 45, f"{node.name} has {lines} lines"
        compiled = any(ast.unparse(d).partition("(")[0].endswith("jit") for d in node.decorator_list)
        if not node.name.startswith("_") and not compiled:
            arguments = [a for a in node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]
            assert node.returns is not None, node.name
            assert all(a.annotation is not None for a in arguments), node.name
