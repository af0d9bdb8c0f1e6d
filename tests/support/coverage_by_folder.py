"""Branches of each folder of the package that the tests take: `make coverage`. `make mutants` uses what it finds."""

import json
from collections import Counter
from pathlib import Path

import coverage

from tests.support.mutants import COVERAGE, SCRATCH, observe

COUNTED = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def main() -> None:
    observe(["tests"])
    known = coverage.Coverage(data_file=str(COVERAGE))
    known.load()
    report = SCRATCH / "coverage.json"
    known.json_report(outfile=str(report))
    folders: dict[str, Counter] = {}
    for name, file in json.loads(report.read_text())["files"].items():
        folder = "/".join(Path(name).parts[:2]) if len(Path(name).parts) > 2 else Path(name).parts[0]
        counts = Counter({key: file["summary"][key] for key in COUNTED})
        folders[folder] = folders.get(folder, Counter()) + counts
    folders["all"] = sum(folders.values(), Counter())
    print("| folder | statements | run | branches | taken |", "|---|---|---|---|---|", sep="\n")
    for folder, count in sorted(folders.items()):
        lines, branches = count["num_statements"], count["num_branches"]
        run, taken = (100 * count[key] / max(1, of) for key, of in zip(COUNTED[1::2], (lines, branches), strict=True))
        print(f"| {folder} | {lines:,} | {run:.1f} % | {branches:,} | {taken:.1f} % |")


if __name__ == "__main__":
    main()
