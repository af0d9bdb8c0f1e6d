"""The list of mutants that survive speaks of the code as it is; `make mutants` prints it beside what it finds."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = tomllib.loads((ROOT / "tests" / "support" / "survivors.toml").read_text())


@pytest.mark.parametrize("path", SURVIVORS)
def test_each_survivor_is_of_code_that_is_still_there(path):
    source = " ".join((ROOT / path).read_text().split())
    for change, reason in SURVIVORS[path].items():
        function, _, change = change.partition(": ")
        old, _, new = change.partition(" -> ")
        assert f"def {function.rpartition('.')[2]}(" in source, function
        assert " ".join(old.split()) in source, old
        assert new != old
        assert len(reason.split()) > 2, f"{old}: the reason is {reason!r}"
