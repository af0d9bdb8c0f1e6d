"""Run the cells of notebooks in IPython, the quick ones twice in place: python cells_twice.py NOTEBOOK...

Ends with status 1 where a second run raises. Left out are cells whose outputs are measured, and cells that raise the
first time, as these may need one of them: `pytest --nbval` runs all cells.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

QUICK = 4.0  # seconds of computing in the first run, which are about the same on a busy machine


def computed() -> float:
    """The seconds that this process and its children have computed."""
    return sum(os.times()[:4])


def exact_cells(path: Path) -> dict[str, str]:
    """The sources of a notebook's code cells by their ids, without those whose outputs are measured."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    exact = [cell for cell in code if "nbval-ignore-output" not in cell["metadata"].get("tags", [])]
    return {cell["id"]: "".join(cell["source"]) for cell in exact}


def raising_again(path: Path) -> list[str]:
    """The cells that raise when they are run a second time. Raises `AssertionError` if few were run twice."""
    shell = InteractiveShell.instance()
    shell.reset()
    cells, tried, raised = exact_cells(path), 0, []
    for name, source in cells.items():
        begin = computed()
        if not shell.run_cell(source, store_history=True).success or computed() - begin > QUICK:
            continue
        tried += 1
        again = shell.run_cell(source, store_history=True)
        if not again.success:
            raised.append(f"{path.name}, cell {name}: {again.error_in_exec or again.error_before_exec!r}")
    assert 2 * tried >= len(cells), f"{path.name}: of {len(cells)} cells only {tried} were run twice"
    return raised


if __name__ == "__main__":
    found = [line for name in sys.argv[1:] for line in raising_again(Path(name))]
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
