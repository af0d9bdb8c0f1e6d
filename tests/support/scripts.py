"""The scripts of docs/, which are no package."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def script(name):
    """A script of docs/ as a module; name: its path there, without the ending."""
    path = DOCS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
