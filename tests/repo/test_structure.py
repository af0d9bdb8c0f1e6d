"""What is imported when; ruff, mypy and import-linter hold the other rules of the code."""

import subprocess
import sys
from pathlib import Path

import pytest

import rosecourse

PACKAGE = Path(rosecourse.__file__).parent


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
